"""What changes when the breaker stands outside of retry: requests at the server and answers to callers, counted.

::

    python -m tests.benchmarks.breaker_order

Twenty calls, one after the other, three attempts each, a breaker with its defaults. Counts, not times: they are the
same on every machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import netkit
from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer, Exchange

__all__ = ["CALLS", "ORDERS", "SERVERS", "Outcome", "measure"]

CALLS: Final = 20
ORDERS: Final = {"inside": ["retry", "breaker"], "outside": ["breaker", "retry"]}
SERVERS: Final = {"down": 0, "one attempt in three succeeds": 3}
"""How often the server succeeds: every n-th request, 0 for never."""

CONFIG: Final = """
layers = {layers}
[retry]
backoff_initial = 0.001
backoff_max = 0.002
budget_min_per_second = 1000
[breaker]
"""


class Outcome(NamedTuple):
    """Of `CALLS` calls: requests that the server saw, calls answered 200, calls refused by the breaker."""

    requests: int
    succeeded: int
    refused: int


def measure(order: str, server: str) -> Outcome:
    every, seen = SERVERS[server], 0

    def answer(_: Exchange) -> Answer:
        nonlocal seen
        seen += 1
        return Answer.text("ok") if every and seen % every == 0 else Answer.text("down", 503)

    with tempfile.TemporaryDirectory() as directory, MockGPU(tls=False, http="1.1", launch_ms=0) as gpu:
        gpu.route("/v1/embeddings", answer)
        file = Path(directory) / "netkit.toml"
        file.write_text(CONFIG.format(layers=ORDERS[order]).replace("'", '"'))
        session = netkit.Session(config=str(file))
        succeeded = refused = 0
        for _ in range(CALLS):
            try:
                succeeded += session.post(gpu.url + "/v1/embeddings", json={"input": "a"}).status_code == 200
            except netkit.errors.CircuitOpen:
                refused += 1
        session.close()
    return Outcome(seen, succeeded, refused)


if __name__ == "__main__":
    for name in SERVERS:
        for place in ORDERS:
            print(f"{name:32} breaker {place:8} {measure(place, name)}")
