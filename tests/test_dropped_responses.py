"""A response that its caller drops unread: what layers held for it is free, also where it went in a cycle."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

import netkit
from netkit.testing import MockGPU, conformance
from netkit.testing.conformance._bench import run

FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
# Over HTTP/1.1 aiohttp's own stream holds its response for as long as the server sends.
CASES = [(face, http) for face in FACES for http in ("1.1", "2") if (face.name, http) != ("aiohttp", "1.1")]


@pytest.mark.parametrize("in_a_cycle", [False, True], ids=["alone", "in a cycle"])
@pytest.mark.parametrize(("face", "http"), CASES, ids=str)
def test_what_layers_held_for_it_is_free(face: Any, http: str, in_a_cycle: bool) -> None:
    with MockGPU(http="auto" if http == "2" else "1.1", tls=http == "2") as gpu:
        service = f"{'https' if http == '2' else 'http'}://service.test"
        plugins: dict[str, Any] = {
            "telemetry": True,
            "limit": {"concurrency": 1, "tokens_per_minute": 1000000.0},
            "retry": True,
            "balance": {"endpoints": [gpu.url], "url": service},
            "breaker": True,
            "pool": {"max_connections": 1},
            "http2": http == "2",
        }

        async def scenario() -> None:
            session = face.open(plugins, {} if gpu.ca_file is None else {"verify": gpu.ca_file})
            for _ in range(2):
                stream = await session.open_stream("GET", f"{service}/stream/inf?interval_ms=1", timeout=10.0)
                if in_a_cycle:
                    stream.native.of_a_caller = [stream.native]
                del stream
                gc.collect()
                held = netkit.stats(session.native)
                assert (held.limit.in_use, held.requests.in_flight) == (0, 0)
                assert [replica.pending for replica in held.balance.endpoints.values()] == [0]
            answer = await session.request("GET", f"{service}/v1/models", timeout=10.0)
            assert answer.status == 200
            await session.close()

        with warnings.catch_warnings():
            # aiohttp warns of a response that nobody closed.
            warnings.simplefilter("ignore", ResourceWarning)
            run(face, scenario())
