"""What became of a picture."""

from __future__ import annotations

import binascii
import dataclasses

__all__ = ["ProcessedImage"]


@dataclasses.dataclass(frozen=True)
class ProcessedImage:
    """An encoded picture, fit to be sent.

    bytes: the encoded picture. mime: its media type. size: (width, height) in pixels. source_bytes: how many bytes
    it came in. changed: False when `bytes` is the very object that came.
    """

    bytes: bytes = dataclasses.field(repr=False)
    mime: str
    size: tuple[int, int]
    source_bytes: int
    changed: bool

    @property
    def base64(self) -> str:
        """The picture as base64, without line breaks."""
        return binascii.b2a_base64(self.bytes, newline=False).decode("ascii")

    @property
    def data_url(self) -> str:
        """The picture as a data URL."""
        return f"data:{self.mime};base64,{self.base64}"

    @property
    def ratio(self) -> float:
        """Bytes sent for each byte that came: 0.1 is a tenth."""
        return len(self.bytes) / self.source_bytes if self.source_bytes else 1.0
