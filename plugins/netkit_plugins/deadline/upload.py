"""A body that its caller produces while it is sent: in threads nobody can interrupt that, so it ends in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from netkit.errors import TransportError
from netkit.messages import Body

__all__ = ["in_time"]


def in_time(body: Body, late: Callable[[], TransportError | None]) -> Body:
    """`body`, ended by what `late()` gives before each of its chunks; None lets it go on. Only what is iterated and
    can be sent once: memory and files do not keep anybody waiting."""
    if body.replayable:
        return body
    chunks: Any = body.open()
    if hasattr(chunks, "read") or not isinstance(chunks, Iterable):
        return body
    return Body.one_shot(_Timed(chunks, late), body.size)


class _Timed:
    def __init__(self, chunks: Iterable[bytes], late: Callable[[], TransportError | None]) -> None:
        self._chunks = chunks
        self._late = late

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            failure = self._late()
            if failure is not None:
                raise failure
            yield chunk
