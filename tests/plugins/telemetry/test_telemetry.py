"""Spans, metrics and lines of every stack: one for each call, one for each attempt, ended once, without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import netkit
from netkit.testing import MockGPU, faults

_exporter = InMemorySpanExporter()
_reader = InMemoryMetricReader()
RETRY = {"statuses": [503], "backoff_initial": 0.001, "backoff_max": 0.002}


@pytest.fixture(scope="module", autouse=True)
def _providers() -> None:
    tracer = TracerProvider()
    tracer.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(tracer)
    metrics.set_meter_provider(MeterProvider([_reader]))


@pytest.fixture
def spans() -> Callable[[], list[ReadableSpan]]:
    _exporter.clear()
    return lambda: list(_exporter.get_finished_spans())


@pytest.fixture(scope="module")
def gpu() -> Iterator[MockGPU]:
    with MockGPU(launch_ms=0, per_item_ms=0) as server:
        yield server


Post = Callable[..., int]


def _requests(gpu: MockGPU, calls: list[dict[str, Any]], **plugins: Any) -> list[Any]:
    found: list[Any] = []
    with netkit.Session(plugins=plugins) as session:
        session.verify = gpu.ca_file
        for call in calls:
            try:
                found.append(session.request(call.get("method", "POST"), call["url"], **_rest(call)).status_code)
            except requests.RequestException as error:
                found.append(error)
    return found


def _httpx(stack: Any) -> Callable[..., list[Any]]:
    def run(gpu: MockGPU, calls: list[dict[str, Any]], **plugins: Any) -> list[Any]:
        found: list[Any] = []
        face: Any = netkit.Client if stack is httpx else netkit.httpx2.Client
        with face(plugins=plugins, verify=ssl.create_default_context(cafile=gpu.ca_file)) as client:
            for call in calls:
                try:
                    found.append(client.request(call.get("method", "POST"), call["url"], **_rest(call)).status_code)
                except stack.HTTPError as error:
                    found.append(error)
        return found

    return run


def _httpx_async(stack: Any) -> Callable[..., list[Any]]:
    def run(gpu: MockGPU, calls: list[dict[str, Any]], **plugins: Any) -> list[Any]:
        async def main() -> list[Any]:
            found: list[Any] = []
            face: Any = netkit.AsyncClient if stack is httpx else netkit.httpx2.AsyncClient
            async with face(plugins=plugins, verify=ssl.create_default_context(cafile=gpu.ca_file)) as client:
                for call in calls:
                    try:
                        answer = await client.request(call.get("method", "POST"), call["url"], **_rest(call))
                        found.append(answer.status_code)
                    except stack.HTTPError as error:
                        found.append(error)
            return found

        return asyncio.run(main())

    return run


def _aiohttp(gpu: MockGPU, calls: list[dict[str, Any]], **plugins: Any) -> list[Any]:
    async def main() -> list[Any]:
        found: list[Any] = []
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        async with netkit.ClientSession(plugins=plugins) as session:
            for call in calls:
                try:
                    async with session.request(
                        call.get("method", "POST"), call["url"], ssl=trust, **_rest(call)
                    ) as answer:
                        await answer.read()
                        found.append(answer.status)
                except (aiohttp.ClientError, OSError) as error:
                    found.append(error)
        return found

    return asyncio.run(main())


def _rest(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key not in ("method", "url")}


FACES = {
    "requests": _requests,
    "httpx": _httpx(httpx),
    "httpx2": _httpx(httpx2),
    "httpx-async": _httpx_async(httpx),
    "httpx2-async": _httpx_async(httpx2),
    "aiohttp": _aiohttp,
}


@pytest.fixture(params=FACES)
def run(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    return FACES[request.param]


def embed(gpu: MockGPU, **more: Any) -> dict[str, Any]:
    return {"url": f"{gpu.url}/v1/embeddings", "json": {"model": "bge", "input": "x"}, **more}


def _by_kind(found: list[ReadableSpan]) -> tuple[list[ReadableSpan], list[ReadableSpan]]:
    """Calls, attempts: those without and with a parent."""
    return [span for span in found if span.parent is None], [span for span in found if span.parent is not None]


def test_fifty_calls_are_fifty_spans_with_one_child_each(
    run: Any, gpu: MockGPU, spans: Callable[[], list[ReadableSpan]]
) -> None:
    assert run(gpu, [embed(gpu)] * 50, telemetry={"otel": True}) == [200] * 50
    calls, attempts = _by_kind(spans())
    assert len(calls) == len(attempts) == 50
    assert {span.context.span_id for span in calls if span.context} == {
        s.parent.span_id for s in attempts if s.parent
    }
    call, attempt = dict(calls[0].attributes or {}), dict(attempts[0].attributes or {})
    assert calls[0].name == "embeddings bge"
    assert call["gen_ai.operation.name"] == "embeddings"
    assert call["gen_ai.request.model"] == "bge"
    assert isinstance(call["gen_ai.usage.input_tokens"], int)
    assert call["netkit.attempts"] == 1
    assert attempts[0].name == "POST"
    assert attempt["http.response.status_code"] == 200
    assert attempt["network.protocol.version"] == "2"
    assert attempt["server.address"] == "127.0.0.1"
    assert attempt["url.full"] == f"{gpu.url}/v1/embeddings"


def test_the_server_sees_the_attempts_context(
    run: Any, gpu: MockGPU, spans: Callable[[], list[ReadableSpan]]
) -> None:
    before = len(gpu.log.requests)
    run(gpu, [embed(gpu)], telemetry={"otel": True})
    run(gpu, [embed(gpu)], telemetry={"otel": True, "propagate": False})
    _, attempts = _by_kind(spans())
    first, second = [request.header("traceparent") for request in gpu.log.requests[before:]]
    assert attempts[0].context is not None
    assert first is not None
    assert first.startswith(f"00-{attempts[0].context.trace_id:032x}-{attempts[0].context.span_id:016x}-")
    assert second is None


def test_each_attempt_of_a_retried_call(run: Any, gpu: MockGPU, spans: Callable[[], list[ReadableSpan]]) -> None:
    gpu.script(faults.Status(503, times=2))
    assert run(gpu, [embed(gpu)], telemetry={"otel": True}, retry=RETRY) == [200]
    calls, attempts = _by_kind(spans())
    assert [dict(span.attributes or {})["http.response.status_code"] for span in attempts] == [503, 503, 200]
    assert [dict(span.attributes or {}).get("http.request.resend_count") for span in attempts] == [None, 1, 2]
    assert [dict(span.attributes or {}).get("error.type") for span in attempts] == ["503", "503", None]
    assert len(calls) == 1
    assert dict(calls[0].attributes or {})["netkit.attempts"] == 3
    assert calls[0].status.is_ok


def test_a_failure(run: Any, gpu: MockGPU, spans: Callable[[], list[ReadableSpan]]) -> None:
    gpu.script(faults.ResetBeforeHeaders())
    (error,) = run(gpu, [embed(gpu)], telemetry={"otel": True}, retry=False)
    assert isinstance(error, Exception)
    calls, attempts = _by_kind(spans())
    assert len(calls) == len(attempts) == 1
    for span in (*calls, *attempts):
        assert not span.status.is_ok
        assert dict(span.attributes or {})["error.type"] in {"reset", "disconnected"}


def test_without_any_watcher_nothing_is_added(
    run: Any, gpu: MockGPU, spans: Callable[[], list[ReadableSpan]]
) -> None:
    before = len(gpu.log.requests)
    assert run(gpu, [embed(gpu)], telemetry=True) == [200]
    assert spans() == []
    assert gpu.log.requests[before].header("traceparent") is None


def test_no_secret_gets_out(
    run: Any,
    gpu: MockGPU,
    spans: Callable[[], list[ReadableSpan]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="netkit")
    lines = tmp_path / "calls.jsonl"
    host = gpu.url.removeprefix("https://")
    secret = {
        "url": f"https://u:pass-SECRET0@{host}/v1/embeddings?api_key=SECRET1&sig=SECRET2&q=ok",
        "json": {"model": "bge", "input": "SECRET5"},
        "headers": {"api-key": "SECRET4", "X-Token": "SECRET3"},
    }
    gpu.script(faults.Status(503, times=1), faults.ResetBeforeHeaders(nth=3))
    answers = run(gpu, [secret, secret], telemetry={"otel": True, "log": str(lines), "prometheus": True}, retry=RETRY)
    assert answers[0] == 200
    told = [json.dumps(json.loads(span.to_json())) for span in spans()]
    told += [lines.read_text(), caplog.text.replace("httpx", "")]
    from prometheus_client import generate_latest

    told += [generate_latest().decode(), str(_reader.get_metrics_data())]
    for text in told:
        assert "SECRET" not in text
        assert "u:pass" not in text
    assert any("q=ok" in text and "api_key=REDACTED" in text for text in told)


def test_a_thousand_urls_are_few_series(gpu: MockGPU) -> None:
    from prometheus_client import generate_latest

    calls = [{"method": "GET", "url": f"{gpu.url}/v1/models?page={number}"} for number in range(200)]
    _requests(gpu, calls, telemetry={"prometheus": True})
    counts = [
        line
        for line in generate_latest().decode().splitlines()
        if line.startswith("netkit_call_duration_seconds_count")
        and all(label in line for label in ('method="GET"', 'stack="requests"', 'host="127.0.0.1"', 'status="2xx"'))
    ]
    assert len(counts) == 1
    assert "netkit_requests_total" in generate_latest().decode()


def points(name: str) -> list[dict[str, Any]]:
    """The attributes of a metric's series."""
    data: Any = _reader.get_metrics_data()
    return [
        dict(point.attributes)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def test_a_thousand_hosts_and_models_are_few_series(
    monkeypatch: pytest.MonkeyPatch, spans: Callable[[], list[ReadableSpan]]
) -> None:
    from netkit_plugins.telemetry import kinds, otel, prometheus
    from prometheus_client import generate_latest

    monkeypatch.setattr(otel, "_server", kinds.Few(5))
    monkeypatch.setattr(otel, "_model", kinds.Few(5))
    monkeypatch.setattr(prometheus, "_host", kinds.Few(5))
    calls = [
        {"url": f"http://h{number}.invalid/v1/embeddings", "json": {"model": f"m{number}", "input": "x"}}
        for number in range(20)
    ]
    with netkit.Session(plugins={"telemetry": {"otel": True, "prometheus": True}, "http2": False}) as session:
        session.mount("http://", Refusing())
        for call in calls:
            with pytest.raises(requests.ConnectionError):
                session.post(call["url"], json=call["json"])
    invalid = {point["server.address"] for point in points("http.client.request.duration")}
    assert {host for host in invalid if host.endswith(".invalid")} == {f"h{number}.invalid" for number in range(5)}
    assert "other" in invalid
    models = {point.get("gen_ai.request.model") for point in points("gen_ai.client.operation.duration")}
    assert {f"m{number}" for number in range(5)} | {"other"} <= models
    assert "m5" not in models
    shown = generate_latest().decode()
    assert "h4.invalid" in shown
    assert "h5.invalid" not in shown
    assert 'host="other"' in shown
    assert any(span.attributes and span.attributes["server.address"] == "h19.invalid" for span in spans())


class Refusing(requests.adapters.HTTPAdapter):
    """Fails as a server that is not there, without asking any name server."""

    def send(self, *_: Any, **__: Any) -> requests.Response:
        raise requests.ConnectionError("nobody there")


def test_a_port_that_is_taken_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Several workers share one configuration."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with netkit.Session(plugins={"telemetry": {"prometheus_port": port}}):
            assert f"{port} is taken" in caplog.text


def test_lines(run: Any, gpu: MockGPU, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    gpu.script(faults.Status(503, times=1))
    run(gpu, [embed(gpu), embed(gpu)], telemetry={"log": str(path)}, retry=RETRY)
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["status"], first["attempts"], second["attempts"]) == (200, 2, 1)
    assert first["url"] == f"{gpu.url}/v1/embeddings"
    assert first["error"] is None
    assert 0 < first["head_seconds"] <= first["seconds"]


def test_a_stream_left_early_ends_its_spans_once(gpu: MockGPU, spans: Callable[[], list[ReadableSpan]]) -> None:
    chat = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}], "max_tokens": 50}
    gate = faults.Hold(at="head")
    gpu.script(gate)
    with netkit.Session(plugins={"telemetry": {"otel": True}}) as session:
        session.verify = gpu.ca_file
        answer = session.post(f"{gpu.url}/v1/chat/completions", json=chat, stream=True)
        assert spans() == []
        answer.close()
    gate.release()
    calls, attempts = _by_kind(spans())
    assert len(calls) == len(attempts) == 1
    assert [event.name for event in calls[0].events] == ["closed by the caller"]
    assert dict(calls[0].attributes or {})["gen_ai.request.stream"] is True


def test_twice_is_once(gpu: MockGPU, spans: Callable[[], list[ReadableSpan]]) -> None:
    session = requests.Session()
    before = dict(session.__dict__)
    for _ in range(3):
        netkit.attach(session, plugins={"telemetry": {"otel": True}})
    for _ in range(10):
        session.post(f"{gpu.url}/v1/embeddings", json={"model": "m", "input": "x"}, verify=gpu.ca_file)
    assert len(spans()) == 20
    netkit.detach(session)
    assert session.__dict__ == before
    session.post(f"{gpu.url}/v1/embeddings", json={"model": "m", "input": "x"}, verify=gpu.ca_file)
    assert len(spans()) == 20
    session.close()


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(netkit.ConfigError, match=r"telemetry\.log: .*No such file"):
        netkit.Session(plugins={"telemetry": {"log": str(tmp_path / "missing" / "x")}})


def test_the_dashboard_asks_for_what_is_told(gpu: MockGPU) -> None:
    import re

    from prometheus_client import generate_latest

    page = (Path(__file__).parents[3] / "docs" / "grafana-dashboard.json").read_text()
    _requests(gpu, [embed(gpu)], telemetry={"prometheus": True})
    with netkit.Session(plugins={"telemetry": {"prometheus": True}}):
        told = set(re.findall(r"^(netkit_\w+)", generate_latest().decode(), re.MULTILINE))
    expressions = [target["expr"] for panel in json.loads(page)["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"netkit_\w+", expression)}
    assert asked - told == set()


FORKED = """
import os, signal, sys, netkit, requests
from prometheus_client import REGISTRY, Counter, generate_latest
own = Counter("own_total", "the program's", ["label"])
own.labels("x").inc()
session = netkit.Session(plugins={"telemetry": {"prometheus": True}})
session.get(sys.argv[1]).raise_for_status()
from netkit_plugins.telemetry import prometheus
child = prometheus._seconds.labels("requests", "GET", "127.0.0.1", "2xx")
held = [prometheus._seconds._lock, REGISTRY._lock, own._lock]
if len(sys.argv) > 2:
    held += [next(iter(type(child._sum).inc.__closure__[n].cell_contents for n in range(9)
        if hasattr(type(child._sum).inc.__closure__[n].cell_contents, "acquire")))]
else:
    held += [child._sum._lock, child._buckets[0]._lock, own.labels("x")._value._lock]
for lock in held:
    assert lock.acquire(timeout=1)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    session.get(sys.argv[1]).raise_for_status()
    own.labels("x").inc()
    told = generate_latest(REGISTRY).decode()
    os._exit(0 if "own_total" in told and "netkit_requests_total" in told else 1)
for lock in held:
    lock.release()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
session.close()
"""


@pytest.mark.parametrize("in_files", [False, True])
def test_a_forked_child_is_not_kept_by_what_the_parent_was_counting(in_files: bool, tmp_path: Path) -> None:
    environment = {**os.environ, **({"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)} if in_files else {})}
    with MockGPU(tls=False) as server:
        done = subprocess.run(
            [sys.executable, "-c", FORKED, f"{server.url}/health", *(["files"] if in_files else [])],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
