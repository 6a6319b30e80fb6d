"""Step 4 of the ladder, flow control: the same 500 exchanges at a round trip of 20 ms, with HTTP/2's initial windows
on one connection, and with tuned windows on several.

Why it matters: a sender may have no more unacknowledged bytes under way than the window allows, so a window of 64 KiB
at 20 ms lets 3 MB a second through, whatever the network could carry (RFC 9113 section 5.2).
"""

from __future__ import annotations

import asyncio
import resource
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from netkit.cli.demo.bounded import run_within

__all__ = ["SETTINGS", "FlowOutcome", "FlowSetting", "measure"]

ROUND_TRIP_MS: Final = 20
STREAMS: Final = 500
BODY: Final = 32 << 10
EVENTS: Final = 10
INTERVAL_MS: Final = 20


class FlowSetting(msgspec.Struct, frozen=True):
    """A named set of options of the `http2` plugin."""

    title: str
    http2: Mapping[str, Any]


SETTINGS: Final = (
    FlowSetting(
        "64 KiB, 1 connection",
        {"max_connections": 1, "max_streams": STREAMS, "stream_window": 65535, "connection_window": 65535},
    ),
    FlowSetting("8 and 32 MiB, up to 16 connections", {"max_connections": 16, "max_streams": 50}),
)


class FlowOutcome(msgspec.Struct, frozen=True):
    """What one setting did. Times in seconds, throughput in bytes per second, `cpu` of this process."""

    title: str
    throughput: float
    first_tokens: tuple[float, ...]
    gaps: tuple[float, ...]
    cpu: float
    connections: int
    errors: int


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(
    setting: FlowSetting, url: str, ca_file: str, advance: Callable[[], None], seconds: float | None = None
) -> FlowOutcome:
    """Run the downloads, then the token streams, each all at once on one client. Raises TimeoutError when they have
    not ended within `seconds`; None: they may take their time."""
    return run_within(_measure(setting, url, ca_file, advance), seconds)


async def _measure(setting: FlowSetting, url: str, ca_file: str, advance: Callable[[], None]) -> FlowOutcome:
    import netkit

    trust = ssl.create_default_context(cafile=ca_file)
    errors = 0
    connections = 0
    first_tokens: list[float] = []
    gaps: list[float] = []
    received = 0

    async with netkit.AsyncClient(verify=trust, timeout=60, plugins={"http2": setting.http2}) as client:

        async def download() -> None:
            nonlocal errors, received
            try:
                answer = await client.get(f"{url}/bytes/{BODY}")
                received += len(answer.content)
            except Exception:  # noqa: BLE001 - a failed call is a result here
                errors += 1
            advance()

        async def stream(started: float) -> None:
            nonlocal errors
            previous = 0.0
            try:
                async with client.stream("GET", f"{url}/stream/{EVENTS}?interval_ms={INTERVAL_MS}") as answer:
                    async for _ in answer.aiter_raw():
                        now = time.perf_counter()
                        if previous:
                            gaps.append(now - previous)
                        else:
                            first_tokens.append(now - started)
                        previous = now
            except Exception:  # noqa: BLE001 - a failed call is a result here
                errors += 1
            advance()

        before, started = _cpu(), time.perf_counter()
        await asyncio.gather(*(download() for _ in range(STREAMS)))
        seconds = time.perf_counter() - started
        await asyncio.gather(*(stream(time.perf_counter()) for _ in range(STREAMS)))
        cpu = _cpu() - before
        connections = netkit.stats(client).http2.opened_total
    return FlowOutcome(setting.title, received / seconds, tuple(first_tokens), tuple(gaps), cpu, connections, errors)
