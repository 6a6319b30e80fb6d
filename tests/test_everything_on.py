"""All plugins at once, in the default order, on every face and over both protocols: each caller gets its own.

Two replicas behind one address, one of which fails now and then; embeddings, single and in lists, equal and
different, for two tenants; streams of chat in between. Every vector proves its input, every stream its messages.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import netkit
from netkit.flow import run_sync
from netkit.testing import MockGPU, conformance, expected_vector, faults
from netkit.testing.conformance._bench import in_threads, run
from netkit.testing.conformance._cases import _own_environment
from netkit.testing.mock_gpu.expected import expected_tokens

FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
every_face = pytest.mark.parametrize(
    ("face", "http"), [(face, http) for face in FACES for http in ("1.1", "2")], ids=str
)

SERVICE = "service.test"
PLUGINS: dict[str, Any] = {
    "telemetry": True,
    "deadline": {"total": 60.0},
    "cache": True,
    "coalesce": True,
    "image": {"max_size": 32},
    "batch": {"max_items": 8},
    "limit": {"concurrency": 16, "requests_per_second": 2000.0},
    "retry": {"attempts": 4, "backoff_initial": 0.001, "backoff_max": 0.002, "budget_min_per_second": 1000.0},
    "breaker": {"fail_max": 1000},
    "pool": True,
}


class Stage:
    """A session with everything on, and the replicas that it talks to."""

    def __init__(self, face: Any, session: Any, gpus: list[MockGPU]) -> None:
        self.face = face
        self.session = session
        self.gpus = gpus
        self.scheme = "https" if gpus[0].ca_file else "http"

    async def post(self, body: Any, tenant: str, path: str = "/v1/embeddings") -> Any:
        headers = {"Authorization": f"Bearer {tenant}", "X-Tenant": tenant}
        return await self.session.request(
            "POST", f"{self.scheme}://{SERVICE}{path}", json=body, headers=headers, timeout=30.0
        )

    async def all(self, jobs: list[Callable[[], Awaitable[None]]]) -> None:
        if self.face.is_async:
            await asyncio.gather(*(job() for job in jobs))
            return
        failures: list[BaseException] = []
        rest = iter(jobs)
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    job = next(rest, None)
                if job is None:
                    return
                try:
                    run_sync(job())  # type: ignore[arg-type]
                except BaseException as error:
                    failures.append(error)

        in_threads([work] * 16)
        if failures:
            raise failures[0]

    def records(self) -> list[Any]:
        return [record for gpu in self.gpus for record in gpu.log.requests]


@contextmanager
def _replicas(http: str) -> Iterator[list[MockGPU]]:
    options: dict[str, Any] = {
        "http": "auto" if http == "2" else "1.1",
        "tls": http == "2",
        "launch_ms": 1.0,
        "per_item_ms": 0.0,
        "token_ms": 0.0,
        "data_order": "shuffled",
    }
    with _own_environment(), MockGPU(**options) as one:
        with MockGPU(**options) as other:
            yield [one, other]


def play(face: Any, http: str, folder: Path, scenario: Callable[[Stage], Awaitable[None]]) -> None:
    """Run `scenario` with everything on; afterwards nothing is under way anywhere."""

    async def main() -> None:
        address = f"{'https' if http == '2' else 'http'}://{SERVICE}"
        balance = {"endpoints": [gpu.url for gpu in gpus], "url": address, "eject_after": 0}
        options: Any = {}
        if http == "2":
            # Each replica has an authority of its own.
            authorities = "".join(Path(gpu.ca_file).read_text() for gpu in gpus)
            options["verify"] = str(folder / "authorities.pem")
            Path(options["verify"]).write_text(authorities)
        session = face.open({**PLUGINS, "balance": balance, "http2": http == "2"}, options)
        try:
            stage = Stage(face, session, gpus)
            await scenario(stage)
            assert {record.protocol for record in stage.records()} == {f"HTTP/{http}"}
            held = netkit.stats(session.native)
            assert held.requests.in_flight == 0
            assert (held.cache.in_flight, held.coalesce.in_flight) == (0, 0)
            assert (held.batch.in_flight, held.batch.waiting) == (0, 0)
            assert (held.image.in_use, held.image.waiting, held.image.memory) == (0, 0, 0)
            assert [replica.pending for replica in held.balance.endpoints.values()] == [0, 0]
        finally:
            await session.close()

    with _replicas(http) as gpus:
        run(face, main())


def _check(answer: Any, given: Any, dimensions: int) -> None:
    assert answer.status == 200, answer.content
    assert answer.values("content-length") in ([], [str(len(answer.content))])
    items = [given] if isinstance(given, str) else given
    # A call that nobody joined has the server's own order.
    data = sorted(answer.json()["data"], key=lambda part: part["index"])
    assert [part["index"] for part in data] == list(range(len(items)))
    assert [part["embedding"] for part in data] == [expected_vector(item, dimensions=dimensions) for item in items]


@every_face
def test_each_caller_gets_its_own(face: Any, http: str, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        failing = stage.gpus[1]
        for _ in range(6):
            failing.faults.push(faults.Pass(times=2), faults.Status(503, times=1))

        def embedding(number: int) -> Callable[[], Awaitable[None]]:
            # Equal inputs for both tenants and for both lengths of vectors; lists that share some of their inputs.
            tenant, dimensions = f"tenant-{number % 2}", (4, 8)[number // 2 % 2]
            given: Any = (
                f"text {number % 10}" if number % 3 else [f"text {n % 10}" for n in range(number, number + 3)]
            )

            async def call() -> None:
                body = {"model": f"for-{tenant}", "input": given, "dimensions": dimensions}
                answer = await stage.post(body, tenant)
                _check(answer, given, dimensions)
                assert answer.json()["model"] == f"for-{tenant}"

            return call

        def chat(number: int) -> Callable[[], Awaitable[None]]:
            async def call() -> None:
                messages = [{"role": "user", "content": f"question {number}"}]
                body = {"model": "m", "messages": messages, "stream": True, "max_tokens": 5}
                url = f"{stage.scheme}://{SERVICE}/v1/chat/completions"
                headers = {"Authorization": "Bearer tenant-0", "X-Tenant": "tenant-0"}
                text = ""
                async with stage.session.stream("POST", url, json=body, headers=headers, timeout=30.0) as stream:
                    assert stream.status == 200
                    while (event := await stream.event()) and event != b"data: [DONE]":
                        for choice in json.loads(event.removeprefix(b"data: "))["choices"]:
                            text += choice["delta"].get("content") or ""
                assert text == "".join(expected_tokens(messages, 5))

            return call

        await stage.all([chat(n) if n % 8 == 7 else embedding(n) for n in range(96)])
        for record in stage.records():
            # Nothing was merged over a tenant's border: what was sent for one carries its credential.
            tenant = record.header("x-tenant")
            assert record.header("authorization") == f"Bearer {tenant}"
            model = record.json()["model"]
            assert model in (f"for-{tenant}", "m")
        sent = [record for record in stage.records() if record.path == "/v1/embeddings" and record.status == 200]
        inputs = [
            (record.header("x-tenant"), record.json()["dimensions"], item)
            for record in sent
            for item in (
                [record.json()["input"]] if isinstance(record.json()["input"], str) else record.json()["input"]
            )
        ]
        # 10 texts for 2 tenants in 2 lengths: what is known or under way is hardly asked for again.
        assert len(set(inputs)) <= 40
        assert len(sent) < 84
        before = len(stage.records())
        await stage.all([embedding(n) for n in range(96) if n % 8 != 7])
        assert len(stage.records()) == before

    play(face, http, tmp_path, scenario)


@every_face
def test_pictures_are_made_small_before_they_are_merged_and_after_they_were_compared(
    face: Any, http: str, tmp_path: Path
) -> None:
    def picture(shade: int) -> str:
        file = io.BytesIO()
        Image.new("RGB", (64, 64), (shade, 255 - shade, 128)).save(file, "PNG")
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()

    async def scenario(stage: Stage) -> None:
        got: dict[int, list[Any]] = {}

        def call(number: int) -> Callable[[], Awaitable[None]]:
            async def one() -> None:
                shade = number % 6 * 40
                answer = await stage.post({"model": "m", "image": picture(shade)}, "tenant-0", "/v1/gme")
                assert answer.status == 200, answer.content
                (part,) = answer.json()["data"]
                got.setdefault(shade, []).append(part["embedding"])

            return one

        await stage.all([call(number) for number in range(24)])
        vectors = {shade: known[0] for shade, known in got.items()}
        assert all(each == vectors[shade] for shade, known in got.items() for each in known)
        assert len({tuple(vector) for vector in vectors.values()}) == 6
        for record in stage.records():
            assert b"data:image/png" not in record.body

    play(face, http, tmp_path, scenario)
