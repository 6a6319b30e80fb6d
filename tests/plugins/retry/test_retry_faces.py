"""Retries on every face: what the server saw, what the caller got, what the numbers say."""

from __future__ import annotations

import email.utils
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from netkit_plugins.retry import layer as layer_module

import netkit
from netkit.config import Config
from netkit.events import AttemptFailed, RetryDenied, RetryScheduled
from netkit.testing import MockGPU, faults
from netkit.testing.conformance import FACES
from tests.faced import Faced

FAST: dict[str, Any] = {
    "attempts": 3,
    "backoff_initial": 0.001,
    "backoff_max": 0.002,
    "budget_min_per_second": 1000.0,
}


@pytest.fixture(params=FACES, ids=str)
def faced(request: pytest.FixtureRequest) -> Faced:
    return Faced(request.param)


@pytest.fixture
def gpu() -> Iterator[MockGPU]:
    with MockGPU(http="1.1", tls=False) as gpu:
        yield gpu


class Call:
    """One call on one face; afterwards what it came to."""

    def __init__(self, faced: Faced, gpu: MockGPU) -> None:
        self.faced = faced
        self.gpu = gpu
        self.events: list[Any] = []
        self.stats: Any = None

    def __call__(self, options: Any = FAST, method: str = "POST", path: str = "/echo", **call: Any) -> Any:
        async def work(session: Any) -> Any:
            netkit.listen(session.native, self.events.append)
            try:
                return await session.request(method, self.gpu.url + path, **call)
            finally:
                self.stats = netkit.stats(session.native)

        return self.faced.run({"retry": options, "http2": False}, work)

    def seen(self) -> int:
        return len(self.gpu.log.requests)

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def call(faced: Faced, gpu: MockGPU) -> Call:
    return Call(faced, gpu)


@pytest.mark.parametrize("attempts", [1, 3, 5])
def test_c20_the_numbers_are_what_the_server_saw(call: Call, gpu: MockGPU, attempts: int) -> None:
    gpu.faults.push(faults.Status(503, times=None))
    assert call({**FAST, "attempts": attempts}).status == 503
    assert call.seen() == attempts
    assert call.stats.requests.attempts == call.stats.retry.attempts == attempts
    assert call.stats.requests.retries == call.stats.retry.retries == attempts - 1
    failed = call.told(AttemptFailed)
    assert [(event.attempt, event.kind, event.status) for event in failed] == [
        (number, "status", 503) for number in range(1, attempts + 1)
    ]
    assert [event.attempt for event in call.told(RetryScheduled)] == list(range(2, attempts + 1))


def test_a_reset_is_told_by_its_kind_and_verdict(call: Call, gpu: MockGPU) -> None:
    gpu.faults.push(faults.CloseBeforeHeaders(how="reset", times=2))
    assert call(method="GET").status == 200
    assert call.seen() == call.stats.retry.attempts == 3
    told = [(event.attempt, event.verdict, event.status) for event in call.told(AttemptFailed)]
    assert told == [(1, "ambiguous", None), (2, "ambiguous", None)]


@pytest.mark.parametrize("mine", [None, "my-key"])
def test_one_key_for_one_call(call: Call, gpu: MockGPU, mine: str | None) -> None:
    gpu.faults.push(faults.CloseBeforeHeaders(how="reset", times=2))
    headers = {} if mine is None else {"idempotency-key": mine}
    assert call({**FAST, "idempotency_key": True}, content=b"x", headers=headers).status == 200
    keys = [record.header("idempotency-key") for record in gpu.log.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert keys[0] == mine if mine else len(keys[0] or "") == 36
    call({**FAST, "idempotency_key": True}, content=b"x")
    assert gpu.log.requests[-1].header("idempotency-key") not in keys


@pytest.mark.parametrize(
    ("status", "said", "seen"),
    [(409, "true", 3), (503, "false", 1), (503, "perhaps", 3), (500, "true", 3), (409, "", 1)],
)
def test_x_should_retry_is_obeyed(call: Call, gpu: MockGPU, status: int, said: str, seen: int) -> None:
    gpu.faults.push(faults.Status(status, headers={"x-should-retry": said} if said else {}, times=None))
    assert call(content=b"x").status == status
    assert call.seen() == seen


def test_a_permanent_429_is_the_callers_at_once_and_whole(call: Call, gpu: MockGPU) -> None:
    body = json.dumps({"error": {"type": "insufficient_quota", "message": "no money"}})
    headers = {"content-type": "application/json", "retry-after": "1"}
    gpu.faults.push(faults.Status(429, headers=headers, body=body, times=None))
    answer = call(content=b"x")
    assert (answer.status, answer.json()["error"]["message"]) == (429, "no money")
    assert call.seen() == 1


def test_a_429_that_may_pass_is_sent_again(call: Call, gpu: MockGPU) -> None:
    gpu.faults.push(faults.Status(429, headers={"content-type": "application/json"}, body='{"error": {"type": "x"}}'))
    assert call(content=b"x").status == 200
    assert call.seen() == 2


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after-ms": "120"}, 0.115, 5.0),
        ({"retry-after-ms": "120", "retry-after": "40"}, 0.115, 5.0),
        ({"retry-after": "0"}, 0.0, 5.0),
        ({"retry-after": "soon"}, 0.0, 5.0),
        ({"retry-after": "-5"}, 0.0, 5.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0, 5.0),
    ],
)
def test_a_server_says_when_to_come_back(
    call: Call, gpu: MockGPU, headers: dict[str, str], least: float, most: float
) -> None:
    gpu.faults.push(faults.Status(429, headers=headers))
    assert call(content=b"x").status == 200
    first, second = gpu.log.requests
    assert least <= second.time - first.time < most


def test_a_date_says_it_too(call: Call, gpu: MockGPU) -> None:
    moment = email.utils.formatdate(time.time() + 2, usegmt=True)
    gpu.faults.push(faults.Status(503, headers={"retry-after": moment}))
    assert call(content=b"x").status == 200
    (scheduled,) = call.told(RetryScheduled)
    assert 0.2 < scheduled.delay <= 2.0


def test_who_asks_for_too_long_a_wait_gets_no_retry(call: Call, gpu: MockGPU) -> None:
    gpu.faults.push(faults.Status(429, headers={"retry-after": "61"}, times=None))
    assert call(content=b"x").status == 429
    assert call.seen() == 1
    assert [event.reason for event in call.told(RetryDenied)] == ["retry-after"]
    assert (call.stats.retry.denied, call.stats.requests.retry_denied) == (1, 1)


@pytest.mark.parametrize("status", [421, 425])
def test_a_refusal_goes_again_at_once_on_another_connection(call: Call, gpu: MockGPU, status: int) -> None:
    gpu.faults.push(faults.Status(status))
    assert call({**FAST, "attempts": 1}, content=b"x").status == 200
    first, second = gpu.log.requests
    assert first.body_sha256 == second.body_sha256
    if status == 421 and call.faced.face.stack != "aiohttp":
        # The face of aiohttp brings a connector of the user's own, of which netkit asks nothing.
        assert first.connection != second.connection
    assert (call.stats.retry.attempts, call.stats.retry.refused_resent, call.stats.retry.retries) == (2, 1, 0)


def test_a_route_has_statuses_of_its_own(faced: Faced, gpu: MockGPU) -> None:
    config = Config.from_mapping(
        {
            "retry": {**FAST, "statuses": [503]},
            "http2": False,
            "route": [
                {"match": f"{gpu.url}/v1/*", "retry": {"statuses": [409]}},
                {"match": f"{gpu.url}/v1/models", "retry": False},
            ],
        },
        "test",
    )
    seen: dict[tuple[str, int], int] = {}

    async def work(session: Any) -> Any:
        for path in ("/echo", "/v1/embeddings", "/v1/models"):
            for status in (409, 503):
                gpu.script(faults.Status(status, times=None))
                gpu.log.clear()
                assert (await session.request("GET", gpu.url + path)).status == status
                seen[path, status] = len(gpu.log.requests)
        return netkit.stats(session.native)

    stats = faced.run({}, work, config)
    assert seen == {
        ("/echo", 409): 1,
        ("/echo", 503): 3,
        ("/v1/embeddings", 409): 3,
        ("/v1/embeddings", 503): 1,
        ("/v1/models", 409): 1,
        ("/v1/models", 503): 1,
    }
    assert stats.requests.attempts == sum(seen.values())
    # Both layers together; /v1/models has none.
    assert stats.retry.attempts == sum(seen.values()) - 2
    assert stats.retry.retries == stats.requests.retries == 4


def test_sessions_of_all_stacks_share_the_budget_of_an_origin(faced: Faced, gpu: MockGPU) -> None:
    options = {**FAST, "budget_ratio": 0.0, "budget_min_per_second": 0.2}
    gpu.faults.push(faults.Status(503, times=None))
    with netkit.Session(plugins={"retry": options}) as other:
        assert other.post(f"{gpu.url}/echo").status_code == 503
    assert len(gpu.log.requests) == 3
    mine = Call(faced, gpu)
    assert mine(options).status == 503
    assert mine.seen() == 4
    assert [event.reason for event in mine.told(RetryDenied)] == ["budget"]
    with MockGPU(http="1.1", tls=False) as elsewhere:
        elsewhere.faults.push(faults.Status(503, times=None))
        assert Call(faced, elsewhere)(options).status == 503
        assert len(elsewhere.log.requests) == 3


def test_c26_an_outage_is_not_made_worse(faced: Faced, gpu: MockGPU) -> None:
    gate = faults.Hold(times=100)
    gpu.faults.push(gate, faults.Status(503, times=None))
    options = {**FAST, "attempts": 4, "budget_ratio": 0.2, "budget_min_per_second": 0.3}

    async def work(session: Any) -> Any:
        async def one() -> int:
            status: int = (await session.request("POST", f"{gpu.url}/echo", content=b"x", timeout=30.0)).status
            return status

        async def release() -> None:
            # All first attempts are there before any fails: the budget is known.
            await gate.wait_for_async(100) if faced.face.is_async else gate.wait_for(100)
            gate.release()

        results = await faced.gather([*[one] * 100, release])
        return results[:-1], netkit.stats(session.native)

    results, stats = faced.run({"retry": options, "http2": False}, work)
    assert results == [503] * 100
    # A fifth of 100, and 3 that are always allowed.
    assert 100 < len(gpu.log.requests) <= 123
    assert stats.retry.attempts == stats.requests.attempts == len(gpu.log.requests)
    assert stats.retry.denied == stats.requests.retry_denied >= 77


def test_an_sdks_own_loop_is_reported(
    call: Call, gpu: MockGPU, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_module, "_sdk_warned", False)
    gpu.faults.push(faults.Status(503, times=9))

    async def work(session: Any) -> Any:
        for count in range(4):
            answer = await session.request(
                "POST", f"{gpu.url}/echo", content=b"x", headers={"x-stainless-retry-count": str(count)}
            )
        return answer.status, netkit.stats(session.native)

    with caplog.at_level(logging.WARNING, "netkit"):
        status, stats = call.faced.run({"retry": FAST, "http2": False}, work)
    assert status == 200
    assert len(gpu.log.requests) == stats.retry.attempts == 10
    assert stats.retry.sdk_retries == 3
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "netkit.retry"]
    assert "2 tries of the SDK so far x 3 attempts here = up to 6 requests for one call" in warning


def test_the_openai_sdks_retries_multiply_and_are_warned_of(
    gpu: MockGPU, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    openai = pytest.importorskip("openai")
    from netkit_adapters import httpx2

    monkeypatch.setattr(layer_module, "_sdk_warned", False)
    gpu.faults.push(faults.Status(503, headers={"retry-after-ms": "1"}, times=None))
    client = httpx2.Client(plugins={"retry": {**FAST, "attempts": 2}}, config=Config())
    with caplog.at_level(logging.WARNING, "netkit"):
        with openai.OpenAI(api_key="k", base_url=f"{gpu.url}/v1", http_client=client, max_retries=2) as sdk:
            with pytest.raises(openai.InternalServerError):
                sdk.embeddings.create(model="m", input="a", encoding_format="float")
            stats = netkit.stats(client)
    assert len(gpu.log.requests) == stats.retry.attempts == 6
    assert stats.retry.sdk_retries == 2
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "netkit.retry"]
    assert "2 tries of the SDK so far x 2 attempts here = up to 4 requests for one call" in warning
