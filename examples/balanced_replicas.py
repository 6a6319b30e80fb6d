"""Two replicas behind one name: calls spread over both, and none fails when one goes away.

Run it: python examples/balanced_replicas.py
"""

from __future__ import annotations

import netkit
from netkit.testing import MockGPU, faults

SERVICE = "http://embed.internal"


def main() -> None:
    with MockGPU(tls=False, launch_ms=1) as one, MockGPU(tls=False, launch_ms=1) as two:
        plugins = {
            "balance": {"url": SERVICE, "endpoints": [one.url, two.url], "eject_after": 3},
            "retry": {"attempts": 3, "backoff_initial": 0.01},
        }
        with netkit.Session(plugins=plugins) as session:
            session.trust_env = False

            def embed(number: int) -> bool:
                body = {"model": "mock-embed", "input": f"text {number}"}
                return session.post(f"{SERVICE}/v1/embeddings", json=body, timeout=10).ok

            before = sum(map(embed, range(50)))
            both = min(len(one.log.requests), len(two.log.requests)) > 0
            one.faults.push(faults.Status(503, times=None))
            after = sum(map(embed, range(50)))
            print(f"{before} of 50 answered, by {'both' if both else 'one'}")
            print(f"{after} of 50 answered while one of them answers 503")
            ejected = netkit.stats(session).balance.endpoints[one.url].ejections
            print(f"left out: {ejected} time(s)")


if __name__ == "__main__":
    main()
