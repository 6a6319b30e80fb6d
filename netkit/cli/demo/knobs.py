"""Beside the ladder: `adaptive`, where a fixed setting loses, and where it is right already.

Why it matters: what size of batch a server likes is known once it has been tried. Where trials cannot
win they must not harm: the second setting here puts all callers into one batch.

A demo has seconds: windows are short, and one trial in ten of equal settings may pass for a win. The defaults are
windows of a second, and one in a hundred.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from netkit.cli.demo.backend import backend

__all__ = ["HEAD", "SECONDS", "SETTINGS", "TICKS", "TITLE", "KnobOutcome", "KnobSetting", "measure", "rows"]

SECONDS: Final = 3.0
"""How long callers call; the last third counts."""
TICKS: Final = 40
CALLERS: Final = 16
_KNOB: Final = "batch.max_items"
_ADAPTIVE: Final = {
    "knobs": [_KNOB],
    "bounds": {_KNOB: [2, 64]},
    "window": 0.1,
    "min_calls": 5,
    "significance": 0.1,
}


class KnobSetting(msgspec.Struct, frozen=True):
    """A server whose GPU takes `launch_ms` for a batch and `item_ms` more for each input, and the `max_items` with
    which callers begin."""

    title: str
    launch_ms: float
    item_ms: float
    max_items: int


SETTINGS: Final = (
    KnobSetting("too small: a launch costs 8 ms", 8.0, 0.2, 2),
    KnobSetting("right already: all callers in one batch", 8.0, 0.2, 16),
)
HEAD: Final = ("max_items", "fixed, calls/s", "with adaptive", "gain", "max_items in the end", "failed")
TITLE: Final = (
    f"beside the ladder, adaptive: {CALLERS} callers, one GPU, {SECONDS:g} s of which the last third counts"
)


class KnobOutcome(msgspec.Struct, frozen=True):
    """Calls per second of the last third, with the setting `fixed` and `moved` by adaptive; where the knob began and
    ended (perhaps in the turn of a trial); failures on both sides."""

    title: str
    fixed: float
    moved: float
    start: int
    end: int
    failed: int


class _Side(msgspec.Struct, frozen=True):
    rate: float
    failed: int
    max_items: int


def rows(outcomes: Sequence[KnobOutcome]) -> list[list[str]]:
    """A row of the table for each outcome."""
    return [
        [
            outcome.title,
            f"{outcome.fixed:,.0f}",
            f"{outcome.moved:,.0f}",
            f"{outcome.moved / outcome.fixed:.2f}x" if outcome.fixed else "",
            f"{outcome.start} → {outcome.end}",
            str(outcome.failed),
        ]
        for outcome in outcomes
    ]


def measure(advance: Callable[[], None], seconds: float = SECONDS) -> list[KnobOutcome]:
    """Each setting, fixed and moved at the same time, against a server each, so that the machine's mood is the same
    for both. `advance` is called `TICKS` times."""
    return [_measure(setting, advance, seconds) for setting in SETTINGS]


def _measure(setting: KnobSetting, advance: Callable[[], None], seconds: float) -> KnobOutcome:
    gpu = ("--launch-ms", str(setting.launch_ms), "--per-item-ms", str(setting.item_ms), "--max-batch", "64")
    flags = ("--gpus", "1", "--http", "1.1", "--no-tls", *gpu)
    with backend(*flags) as first, backend(*flags) as second:
        return asyncio.run(_pair(setting, (first["url"], second["url"]), advance, seconds))


async def _pair(
    setting: KnobSetting, urls: Sequence[str], advance: Callable[[], None], seconds: float
) -> KnobOutcome:
    async def tick() -> None:
        for _ in range(TICKS // len(SETTINGS)):
            await asyncio.sleep(seconds * len(SETTINGS) / TICKS)
            advance()

    batch = {"max_items": setting.max_items, "max_in_flight": 1}
    fixed, moved, _ = await asyncio.gather(
        _calls(urls[0], {"batch": batch}, seconds),
        _calls(urls[1], {"batch": batch, "adaptive": _ADAPTIVE}, seconds),
        tick(),
    )
    return KnobOutcome(
        setting.title, fixed.rate, moved.rate, setting.max_items, moved.max_items, fixed.failed + moved.failed
    )


async def _calls(url: str, plugins: dict[str, Any], seconds: float) -> _Side:
    """`CALLERS` tasks that embed one text after the other."""
    import httpx

    import netkit

    plugins = {"http2": False, "pool": True, **plugins}
    ends: list[float] = []
    failed = 0
    async with netkit.AsyncClient(plugins=plugins, config=netkit.Config(), timeout=30, trust_env=False) as client:
        begun = time.perf_counter()

        async def caller(number: int) -> None:
            nonlocal failed
            while time.perf_counter() - begun < seconds:
                try:
                    body = {"model": "m", "input": f"text {number}"}
                    (await client.post(f"{url}/v1/embeddings", json=body)).raise_for_status()
                except httpx.HTTPError:
                    failed += 1
                else:
                    ends.append(time.perf_counter() - begun)

        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        counted = [end for end in ends if seconds * 2 / 3 <= end <= seconds]
        return _Side(len(counted) / (seconds / 3), failed, netkit.stats(client).plugins["batch"].max_items)
