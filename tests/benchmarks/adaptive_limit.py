"""Many calls at once to a server that takes only a few: what retries alone make of it, and what `limit` does.

`python -m tests.benchmarks.adaptive_limit` prints the table of docs/limit.md. The numbers depend on the machine.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import netkit
from netkit.testing import MockGPU, faults
from netkit.testing.mock_gpu.exchange import Answer, Exchange

__all__ = ["RETRY", "Outcome", "TooManyAtOnce", "measure"]

RETRY: dict[str, Any] = {"attempts": 5}
LIMIT: dict[str, Any] = {"concurrency": "adaptive", "acquire_timeout": 60.0}


@dataclass(frozen=True, kw_only=True)
class TooManyAtOnce(faults.Fault):
    """503 to whoever comes while `most` are inside; each is inside for `seconds`."""

    most: int
    seconds: float = 0.02
    times: int | None = None
    _inside: list[Exchange] = field(init=False, repr=False, compare=False, default_factory=list)

    async def run(self, exchange: Exchange, proceed: faults.Proceed) -> None:
        await exchange.body.wait()
        if len(self._inside) >= self.most:
            await faults.respond(exchange, Answer.error(503, "busy"))
            return
        self._inside.append(exchange)
        try:
            await asyncio.sleep(self.seconds)
            await proceed()
        finally:
            self._inside.remove(exchange)


@dataclass(frozen=True)
class Outcome:
    """Of `calls` calls: how many got 200, how many attempts were refused, what number was found (0: none)."""

    answered: int
    refused: int
    seconds: float
    concurrency: int


async def measure(plugins: dict[str, Any], calls: int = 300, most: int = 6) -> Outcome:
    """All calls at once with these plugins."""
    with MockGPU(http="1.1", tls=False, launch_ms=0) as gpu:
        gpu.faults.push(TooManyAtOnce(most=most))
        plugins = {"http2": False, "pool": {"acquire_timeout": 60.0}, **plugins}
        async with netkit.AsyncClient(plugins=plugins, config=netkit.Config(), timeout=60.0) as client:
            started = time.monotonic()
            answers = await asyncio.gather(*(client.get(f"{gpu.url}/v1/models") for _ in range(calls)))
            stats = netkit.stats(client).plugins.get("limit")
            return Outcome(
                answered=sum(answer.status_code == 200 for answer in answers),
                refused=sum(record.status == 503 for record in gpu.log.requests),
                seconds=time.monotonic() - started,
                concurrency=0 if stats is None else stats.concurrency,
            )


def main() -> None:
    print("| | answered | refused on the way | seconds |\n|---|---|---|---|")
    for name, plugins in (
        ("`retry` alone", {"retry": RETRY}),
        ('`retry` and `limit` with `concurrency = "adaptive"`', {"retry": RETRY, "limit": LIMIT}),
    ):
        found = asyncio.run(measure(plugins))
        print(f"| {name} | {found.answered} | {found.refused} | {found.seconds:.1f} |")


if __name__ == "__main__":
    main()
