"""W8: pictures of 12 MP: what one costs beside plain Pillow, and what 64 at once do to an event loop and to memory.

"Pillow" opens, converts, resizes by LANCZOS and saves, as most projects write it. The lag is how much later than due
a timer of 5 ms fires while 64 uploads are prepared and sent. Memory is what the process grew by at its peak; the
bodies are there before. "aiohttp" and "httpx" send the same bodies untouched: what the stack does alone.
"""

from __future__ import annotations

import asyncio
import base64
import io
import threading
import time
from pathlib import Path
from typing import Any

from netkit.percentile import percentile
from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.client import Clock, Load
from tests.benchmarks.faces import HEADERS, open_async

TITLE = "W8 pictures of 12 MP to 224 x 224 (CPU ms per picture; lag of the loop; MiB more than before)"
SERVER = "nginx"
METRICS = ("cpu_ms", "out_kib", "pictures", "lag_p50_ms", "lag_p99_ms", "lag_max_ms", "grown_mib", "wall_s")
AT_ONCE = 64
SIZE = (4000, 3000)
MEMORY_MIB = 256
PLAIN = ("httpx", "aiohttp")
ASYNC = ("netkit.AsyncClient", "netkit.ClientSession")
PNG = " (PNG)"
WORKED_ON = (*ASYNC, *(face + PNG for face in ASYNC))


def cases(*, quick: bool) -> list[Case]:
    alone = [Case(face, 1, "h2", seconds=1.0 if quick else 4.0) for face in ("Pillow", "netkit.preprocess")]
    at_once = [Case(face, AT_ONCE, "h2") for face in (*PLAIN, *WORKED_ON)]
    return alone + at_once


GOALS = [
    Goal("netkit.preprocess", 1, "cpu_ms", "Pillow", at_most=0.4),
    *(
        goal
        for face in WORKED_ON
        for goal in (
            Goal(face, AT_ONCE, "lag_p99_ms", at_most=20),
            Goal(face, AT_ONCE, "grown_mib", at_most=MEMORY_MIB + 64),
            Goal(face, AT_ONCE, "pictures", at_least=AT_ONCE),
            Goal(face, AT_ONCE, "errors", at_most=0),
        )
    ),
]


def photograph(format_: str) -> bytes:
    """Some 12 MP with grain, as a camera makes them."""
    from PIL import Image, ImageChops

    bands = [Image.radial_gradient("L").rotate(40 * turn).resize(SIZE) for turn in range(3)]
    grain = Image.effect_noise(SIZE, 24)
    picture = Image.merge("RGB", [ImageChops.add(band, grain, 2) for band in bands])
    target = io.BytesIO()
    picture.save(target, format_, **({"quality": 90} if format_ == "JPEG" else {"compress_level": 1}))
    return target.getvalue()


def measure(load: Load) -> dict[str, Any]:
    """Client side."""
    data = photograph("PNG" if load.face.endswith(PNG) else "JPEG")
    if load.face in ("Pillow", "netkit.preprocess"):
        return _alone(load, data)
    return asyncio.run(_at_once(load, data))


def _alone(load: Load, data: bytes) -> dict[str, Any]:
    from PIL import Image

    import netkit

    def pillow() -> int:
        picture = Image.open(io.BytesIO(data)).convert("RGB").resize((224, 168), Image.Resampling.LANCZOS)
        target = io.BytesIO()
        picture.save(target, "JPEG", quality=85)
        return len(target.getvalue())

    work = pillow if load.face == "Pillow" else lambda: len(netkit.preprocess(data).bytes)
    size = work()
    clock, count = Clock(), 0
    deadline = time.perf_counter() + load.seconds
    while count == 0 or time.perf_counter() < deadline:
        work()
        count += 1
    cpu, _ = clock.spent()
    return {"sent": 0, "errors": 0, "error": "", "cpu_ms": cpu / count * 1e3, "out_kib": size / 1024}


async def _at_once(load: Load, data: bytes) -> dict[str, Any]:
    headers = {**HEADERS, "Content-Type": "application/json"}
    options = {"image": {"memory": MEMORY_MIB << 20}}
    face = await open_async(load.face.removesuffix(PNG), load.url, load.ca, headers=headers, **options)
    body = b'{"model": "m", "image": "' + base64.b64encode(data) + b'"}'
    del data
    await face.upload(b'{"input": "a connection, and what is imported at first"}')
    lags: list[float] = []
    errors: list[str] = []

    async def timer() -> None:
        while True:
            due = time.perf_counter() + 0.005
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - due)

    async def upload() -> None:
        try:
            await face.upload(body)
        except Exception as error:
            errors.append(repr(error))

    watching = asyncio.create_task(timer())
    with _Memory() as memory:
        clock = Clock()
        await asyncio.gather(*(upload() for _ in range(load.concurrency)))
        cpu, wall = clock.spent()
    watching.cancel()
    pictures = _worked_on(face.client) if load.face.startswith("netkit") else 0
    await face.close()
    return {
        "sent": load.concurrency + 1,
        "errors": len(errors),
        "error": errors[0] if errors else "",
        "cpu_ms": cpu / load.concurrency * 1e3,
        "wall_s": wall,
        "pictures": pictures,
        "lag_p50_ms": percentile(lags, 0.5) * 1e3,
        "lag_p99_ms": percentile(lags, 0.99) * 1e3,
        "lag_max_ms": max(lags) * 1e3,
        "grown_mib": memory.grown / 2**20,
    }


def _worked_on(client: Any) -> int:
    """How many pictures the plugin has made smaller."""
    import netkit

    image = netkit.stats(client).plugins["image"]
    return int(image.pictures - image.unchanged)


class _Memory:
    """By how many bytes the resident memory of this process grew, at most, while it is watched."""

    def __init__(self) -> None:
        self.grown = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        before = _resident()
        while not self._stop.wait(0.002):
            self.grown = max(self.grown, _resident() - before)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
