"""Step 8 of the ladder, pictures: the same photographs over a thin uplink, as they are and made fit first.

Why it matters: a model that looks at 224 x 224 sees nothing of what a 12 MP photograph holds beyond that; its bytes
only fill the uplink. The server here answers with what it sees, so a picture that was spoiled on the way is an error.
"""

from __future__ import annotations

import asyncio
import io
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from netkit.cli.demo.bounded import run_within
from netkit.percentile import percentile

__all__ = ["HEAD", "SETTINGS", "TITLE", "PictureOutcome", "PictureSetting", "measure", "rows"]

UPLINK: Final = 1_250_000
"""Bytes per second: 10 Mbit/s."""
CORNERS: Final = ("top left", "top right", "bottom left", "bottom right")
SIZE: Final = (4000, 3000)


class PictureSetting(msgspec.Struct, frozen=True):
    """A named set of options of the `image` plugin; False leaves pictures as they are."""

    title: str
    image: Mapping[str, Any] | bool


SETTINGS: Final = (
    PictureSetting("as they are", False),
    PictureSetting("224x224 JPEG", {"max_size": "224x224"}),
)
HEAD: Final = ("pictures", "MB sent", "seconds", "P50 ms", "P99 ms", "right answers", "errors")
TITLE: Final = f"8 pictures: {len(CORNERS)} photographs of 12 MP at once, uplink of 10 Mbit/s (httpx, HTTP/2)"


class PictureOutcome(msgspec.Struct, frozen=True):
    """What one setting did. `sent` in bytes, as the server counted them; `latencies` in seconds; `right` answers were
    those that the photograph deserves."""

    title: str
    sent: int
    seconds: float
    latencies: tuple[float, ...]
    right: int
    errors: int


def rows(outcomes: Sequence[PictureOutcome]) -> list[list[str]]:
    """A row of the table for each outcome."""
    return [
        [
            outcome.title,
            f"{outcome.sent / 1e6:.2f}",
            f"{outcome.seconds:.2f}",
            *(f"{percentile(outcome.latencies, share) * 1e3:.0f}" for share in (0.5, 0.99)),
            f"{outcome.right} of {len(CORNERS)}",
            str(outcome.errors),
        ]
        for outcome in outcomes
    ]


def measure(advance: Callable[[], None], seconds: float | None = None) -> list[PictureOutcome]:
    """Send every photograph under each setting; `advance` is called after each call. Raises TimeoutError when a
    setting has not ended within `seconds`; None: it may take its time."""
    photographs = _photographs()
    return [run_within(_measure(setting, photographs, advance), seconds) for setting in SETTINGS]


def _photographs() -> dict[str, bytes]:
    """One of 12 MP for each corner, with some texture, and a bright spot in that corner."""
    from PIL import Image

    texture = Image.effect_noise((SIZE[0] // 6, SIZE[1] // 6), 40).point([value // 2 for value in range(256)])
    texture = texture.resize(SIZE, Image.Resampling.BILINEAR)
    half = SIZE[0] // 2, SIZE[1] // 2
    spot = Image.radial_gradient("L").resize(half).point([255 - value // 2 for value in range(256)])
    made = {}
    for number, corner in enumerate(CORNERS):
        picture = texture.copy()
        picture.paste(spot, (number % 2 * half[0], number // 2 * half[1]))
        target = io.BytesIO()
        picture.convert("RGB").save(target, "JPEG", quality=80)
        made[corner] = target.getvalue()
    return made


def _seen(content: bytes) -> str:
    """What the model makes of a picture: in which corner it is brightest."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        picture.draft("L", (8, 8))
        means = picture.convert("L").resize((2, 2), Image.Resampling.BOX).tobytes()
    return CORNERS[means.index(max(means))]


async def _measure(
    setting: PictureSetting, photographs: Mapping[str, bytes], advance: Callable[[], None]
) -> PictureOutcome:
    import netkit
    from netkit.testing import MockGPU
    from netkit.testing.mock_gpu import Answer

    latencies: list[float] = []
    right = errors = 0
    plugins: dict[str, Any] = {"image": setting.image, "http2": {"max_connections": 1}, "retry": False}
    async with MockGPU(bandwidth=UPLINK, keep_body=0) as gpu:
        gpu.route("/classify", lambda exchange: Answer.text(_seen(exchange.content)), methods=("POST",))
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        async with netkit.AsyncClient(verify=trust, timeout=60, plugins=plugins) as client:

            async def classify(corner: str, content: bytes) -> None:
                nonlocal right, errors
                started = time.perf_counter()
                try:
                    headers = {"Content-Type": "image/jpeg"}
                    answer = await client.post(f"{gpu.url}/classify", content=content, headers=headers)
                    right += answer.text == corner
                    errors += answer.text != corner
                    latencies.append(time.perf_counter() - started)
                except Exception:  # noqa: BLE001 - a failed call is a result here
                    errors += 1
                advance()

            started = time.perf_counter()
            await asyncio.gather(*(classify(corner, content) for corner, content in photographs.items()))
            seconds = time.perf_counter() - started
        sent = sum(record.body_size for record in gpu.log.requests)
    return PictureOutcome(setting.title, sent, seconds, tuple(latencies), right, errors)
