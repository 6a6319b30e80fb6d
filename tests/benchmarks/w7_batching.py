"""W7: 512 single-input embedding calls, OpenAI SDK, 64 threads, one GPU at 5 ms + 0.2 ms per item.

    python -m tests.benchmarks.w7_batching [--rounds 3]

Stands by itself: its server has to be a GPU that is paid for each launch, which is the mock's, in a process of its
own. The plain SDK and the SDK on netkit with `batch` take turns; every vector is checked. Then two costs of the
plugin: what it takes to split a batch's answer, against `json.loads` of it, and what a call alone pays (CPU,
paired blocks).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

CALLS, THREADS = 512, 64
VECTORS, DIMENSIONS = 256, 1536


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "netkit.testing.mock_gpu", "--no-tls", "--http", "1.1"]
    command += ["--gpus", "1", "--launch-ms", "5", "--per-item-ms", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def _requests(url: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/stats") as answer:
        return int(json.load(answer)["requests"])


def _run(client: Any, url: str, name: str) -> dict[str, float]:
    """Seconds, requests at the server, and CPU µs per call, after each thread has made one call."""
    import openai

    from netkit.testing import expected_vector

    sdk = openai.OpenAI(api_key="k", base_url=f"{url}/v1", http_client=client, max_retries=0)

    def call(number: int) -> None:
        text = f"{name} {number}"
        vector = sdk.embeddings.create(model="mock-embed", input=text).data[0].embedding
        assert list(vector) == expected_vector(text), text

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(call, range(-THREADS, 0)))
        before, cpu, started = _requests(url), time.process_time(), time.perf_counter()
        list(pool.map(call, range(CALLS)))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {"seconds": seconds, "requests": _requests(url) - before - 1, "cpu_us": cpu / CALLS * 1e6}


def _answers_at_once() -> Any:
    """A transport without wire and GPU: what the SDK itself takes, which no middleware can save."""
    import httpx2

    from netkit.testing.mock_gpu import encoded_vector

    class Transport(httpx2.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            text = json.loads(request.content)["input"]
            part = {"object": "embedding", "index": 0, "embedding": encoded_vector(text)}
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            return httpx2.Response(200, json={"object": "list", "data": [part], "model": "m", "usage": usage})

    return Transport()


def calls(rounds: int) -> None:
    import httpx2

    import netkit

    with _server() as url:
        results: dict[str, list[dict[str, float]]] = {"plain SDK": [], "netkit, batch": [], "SDK, no wire": []}
        for number in range(rounds):
            limits = httpx2.Limits(max_connections=THREADS, max_keepalive_connections=THREADS)
            contenders = (
                ("plain SDK", httpx2.Client(limits=limits)),
                ("netkit, batch", netkit.httpx2.Client(plugins={"batch": True})),
                ("SDK, no wire", httpx2.Client(transport=_answers_at_once())),
            )
            for name, client in contenders:
                with client:
                    results[name].append(_run(client, url, f"{name} {number}"))
        for name, found in results.items():
            middle = {key: statistics.median(each[key] for each in found) for key in found[0]}
            ratio = statistics.median(
                plain["seconds"] / own["seconds"] for plain, own in zip(results["plain SDK"], found, strict=True)
            )
            print(
                f"{name:14} {middle['seconds']:6.2f} s  {middle['requests']:5.0f} requests  "
                f"{middle['cpu_us']:6.0f} us CPU per call  throughput x {ratio:.1f}"
            )
    print("goals: at most 24 requests, throughput at least x 8")


def splitting() -> None:
    from netkit.forms import PRESETS

    chance = random.Random(1)
    data = [
        {"object": "embedding", "index": n, "embedding": [chance.uniform(-1, 1) for _ in range(DIMENSIONS)]}
        for n in range(VECTORS)
    ]
    content = json.dumps({"object": "list", "data": data, "model": "m", "usage": {"total_tokens": VECTORS}}).encode()
    form = PRESETS["openai"]

    def split() -> None:
        answer = form.split(content, VECTORS)
        for part, usage in zip(answer.parts, answer.usages([1] * VECTORS), strict=True):
            form.build(answer.envelope, [part], usage)

    def seconds(work: Any) -> float:
        started = time.thread_time()
        work()
        return time.thread_time() - started

    ratios = [seconds(split) / seconds(lambda: json.loads(content)) for _ in range(9)]
    print(
        f"splitting {VECTORS} x {DIMENSIONS} floats ({len(content) / 1e6:.1f} MB): "
        f"{statistics.median(ratios):.1%} of json.loads ({min(ratios):.1%} to {max(ratios):.1%}); goal: at most 15 %"
    )


def alone() -> None:
    """A sequential caller: the route is idle at each of its calls."""
    import netkit
    from netkit.testing import expected_vector

    off: dict[str, Any] = {"retry": False, "http2": False}
    with _server() as url:
        sessions = {
            "without": netkit.Session(plugins=off),
            "with": netkit.Session(plugins={**off, "batch": True}),
        }

        def block(name: str) -> float:
            started = time.thread_time()
            for number in range(20):
                body = {"model": "m", "input": f"text {number}"}
                answer = sessions[name].post(f"{url}/v1/embeddings", json=body)
                assert answer.json()["data"][0]["embedding"] == expected_vector(f"text {number}")
            return (time.thread_time() - started) / 20

        for name in sessions:
            block(name)
        differences = [block("with") - block("without") for _ in range(15)]
        for session in sessions.values():
            session.close()
    print(f"a call alone: {statistics.median(differences) * 1e6:.0f} us of CPU more; goal: at most 200")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.w7_batching")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    calls(arguments.rounds)
    splitting()
    alone()


if __name__ == "__main__":
    main()
