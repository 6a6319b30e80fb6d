"""HTTP/2 under requests: negotiation, resets, GOAWAY, early answers, bursts (CASES C07, C09, C11, C12, C17, C78)."""

from __future__ import annotations

import gc
import hashlib
import io
import random
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from netkit_adapters.requests.errors import _causes
from requests import exceptions as native
from requests.adapters import HTTPAdapter
from urllib3.exceptions import InsecureRequestWarning
from urllib3.response import HTTPResponse

import netkit
from netkit.errors import TransportError, Verdict
from netkit.flow import compose
from netkit.testing import MockGPU, faults
from netkit.testing.mock_gpu import expected_bytes

PLAIN = {"retry": False}


@pytest.fixture(scope="module")
def server() -> Iterator[MockGPU]:
    with MockGPU(launch_ms=0, per_item_ms=0) as gpu:
        yield gpu


@pytest.fixture
def h2(server: MockGPU) -> MockGPU:
    server.script()
    server.log.clear()
    return server


@pytest.fixture
def caller(h2: MockGPU) -> Iterator[netkit.Session]:
    with netkit.Session(plugins=PLAIN) as session:
        session.trust_env = False
        session.verify = h2.ca_file or True
        yield session


def _protocols(gpu: MockGPU) -> set[str]:
    return {request.protocol for request in gpu.log.requests}


# Negotiation


@pytest.mark.parametrize(("http", "protocol"), [("auto", "HTTP/2"), ("1.1", "HTTP/1.1"), ("2", "HTTP/2")])
def test_one_handshake_serves_whichever_protocol_is_chosen(http: str, protocol: str) -> None:
    with MockGPU(http=http, launch_ms=0) as gpu, netkit.Session() as session:
        session.trust_env = False
        session.verify = gpu.ca_file or True
        for _ in range(5):
            assert session.post(f"{gpu.url}/echo", data=b"x").ok
        assert _protocols(gpu) == {protocol}
        assert gpu.stats().connections == 1


@pytest.mark.parametrize("http", ["auto", "1.1"])
def test_a_cold_burst_waits_for_one_negotiation(http: str) -> None:
    with MockGPU(http=http, launch_ms=0) as gpu, netkit.Session() as session:
        session.trust_env = False
        session.verify = gpu.ca_file or True
        start = threading.Barrier(32)

        def call(number: int) -> bool:
            start.wait()
            return bool(session.post(f"{gpu.url}/echo", data=f"n{number}").json()["body"] == f"n{number}")

        with ThreadPoolExecutor(32) as pool:
            assert all(pool.map(call, range(32)))
        assert len(gpu.log.requests) == 32
        if http == "auto":
            assert gpu.stats().connections == 1
        else:
            assert gpu.stats().connections <= 32


def test_a_one_shot_body_is_whole_on_either_protocol() -> None:
    for http in ("auto", "1.1"):
        with MockGPU(http=http, launch_ms=0) as gpu, netkit.Session() as session:
            session.trust_env = False
            session.verify = gpu.ca_file or True
            assert session.post(f"{gpu.url}/echo", data=iter([b"one", b"two"])).json()["body"] == "onetwo"
            assert [request.body for request in gpu.log.requests] == [b"onetwo"]


def test_tls_settings_are_part_of_the_key(h2: MockGPU, caller: netkit.Session) -> None:
    with pytest.warns(Warning, match="Unverified"):
        assert caller.get(f"{h2.url}/echo", verify=False).ok
    with pytest.raises(native.SSLError):
        caller.get(f"{h2.url}/echo", verify=True)
    assert caller.get(f"{h2.url}/echo").ok
    assert _protocols(h2) == {"HTTP/2"}
    assert len({request.connection for request in h2.log.requests}) == 2
    assert len(h2.log.requests) == 2


def test_a_client_certificate_has_connections_of_its_own(tmp_path: Path) -> None:
    with MockGPU(launch_ms=0, client_certificate="optional") as gpu, netkit.Session() as session:
        session.trust_env = False
        session.verify = gpu.ca_file or True
        session.get(f"{gpu.url}/echo")
        session.get(f"{gpu.url}/echo", cert=gpu.client_file)
        first, second = gpu.log.requests
        assert first.connection != second.connection
        shown = {connection.id: connection.client_certificate for connection in gpu.log.connections}
        assert (shown[first.connection], shown[second.connection]) == (False, True)


def test_a_changed_bundle_is_read_again(h2: MockGPU, caller: netkit.Session, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(Path(h2.ca_file or "").read_bytes())
    assert caller.get(f"{h2.url}/echo", verify=str(bundle)).ok
    with MockGPU(launch_ms=0) as other:
        bundle.write_bytes(Path(other.ca_file or "").read_bytes() + b"\n")
        assert caller.get(f"{other.url}/echo", verify=str(bundle)).ok


def test_a_missing_bundle_is_requests_own_error(h2: MockGPU, caller: netkit.Session) -> None:
    with pytest.raises(OSError, match="invalid path"):
        caller.get(f"{h2.url}/echo", verify="/nowhere/ca.pem")


class Subclass(HTTPAdapter):
    pass


@pytest.mark.parametrize("make", [Subclass, lambda: HTTPAdapter(max_retries=2)])
def test_an_adapter_with_a_mind_of_its_own_is_called(h2: MockGPU, caller: netkit.Session, make: Any) -> None:
    caller.mount("https://", make())
    assert caller.get(f"{h2.url}/echo").ok
    assert _protocols(h2) == {"HTTP/1.1"}


def test_a_patched_urllib3_is_called(h2: MockGPU, caller: netkit.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from urllib3.connectionpool import HTTPConnectionPool

    def mocked(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise native.ConnectionError("mock")

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", mocked)
    with pytest.raises(native.ConnectionError, match="mock"):
        caller.get(f"{h2.url}/echo")
    assert not h2.log.requests


def test_http2_can_be_switched_off_for_a_call(h2: MockGPU, caller: netkit.Session) -> None:
    with netkit.overrides(http2=False):
        assert caller.get(f"{h2.url}/echo").raw.version == 11
    assert caller.get(f"{h2.url}/echo").raw.version == 20


# What the server may do


def _code(error: BaseException) -> Any:
    return next(cause.details.get("code") for cause in _causes(error) if isinstance(cause, TransportError))


def test_a_refused_post_is_resent_once_without_a_retry(h2: MockGPU, caller: netkit.Session) -> None:
    h2.script(faults.ResetStream(code=7))
    assert caller.post(f"{h2.url}/echo", data=b"once").ok
    assert [request.method for request in h2.log.requests] == ["POST", "POST"]
    assert netkit.stats(caller).requests.retries == 0


@pytest.mark.parametrize("code", [2, 8, 11])
def test_other_resets_of_a_post_are_told_with_their_code(h2: MockGPU, caller: netkit.Session, code: int) -> None:
    h2.script(faults.ResetStream(code=code, times=None))
    with pytest.raises(native.ConnectionError) as caught:
        caller.post(f"{h2.url}/echo", data=b"once")
    assert _code(caught.value) == code
    assert len(h2.log.requests) == 1


def test_a_server_that_always_refuses_is_not_asked_for_ever(h2: MockGPU, caller: netkit.Session) -> None:
    h2.script(faults.ResetStream(code=7, times=None))
    with pytest.raises(native.ConnectionError) as caught:
        caller.post(f"{h2.url}/echo", data=b"once")
    verdicts = [cause.verdict for cause in _causes(caught.value) if isinstance(cause, TransportError)]
    assert verdicts[0] is Verdict.REFUSED
    assert len(h2.log.requests) == 2


def test_rolling_goaways_lose_and_double_nothing(h2: MockGPU, caller: netkit.Session, tmp_path: Path) -> None:
    # The client closes: a server that closes at once may cut off its own GOAWAY while uploads are under way.
    h2.script(faults.GoAway(request=10, times=None, then="keep"))
    rng = random.Random(7)
    bodies = [rng.randbytes(200 * 1024) for _ in range(60)]

    def post(number: int) -> bool:
        body: Any = bodies[number]
        if number % 2:
            path = tmp_path / f"{number}.bin"
            path.write_bytes(body)
            with path.open("rb") as file:
                return caller.post(f"{h2.url}/upload", data=file, timeout=60).ok
        return caller.post(f"{h2.url}/upload", data=body, timeout=60).ok

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(post, range(len(bodies))))
    processed = [request for request in h2.log.requests if request.status == 200]
    assert len(processed) == len(bodies)
    assert {request.body_size for request in processed} == {200 * 1024}
    assert len({request.body_sha256 for request in processed}) == len(bodies)
    assert netkit.stats(caller).requests.retries == 0


class OfItsOwn:
    """A reader as programs write them: it gives what it has, whatever is asked, and ends as it likes."""

    def __init__(self, end: bytes | str | None, pieces: list[Any]) -> None:
        self.pieces = [*pieces, end]
        self.asked: list[int] = []

    def read(self, size: int = -1) -> Any:
        self.asked.append(size)
        return self.pieces.pop(0) if self.pieces else None


@pytest.mark.parametrize("end", [b"", "", None])
@pytest.mark.parametrize("pieces", [[], [b"same"], [b"same", b"same", b"same"], [b"a", bytearray(b"bc")]])
def test_a_reader_of_the_programs_own_is_asked_as_urllib3_asks(
    h2: MockGPU, caller: netkit.Session, end: bytes | str | None, pieces: list[Any]
) -> None:
    reader = OfItsOwn(end, list(pieces))
    answer = caller.post(f"{h2.url}/upload", data=reader)
    assert answer.raw.version == 20
    assert answer.json()["size"] == sum(map(len, pieces))
    assert h2.log.requests[-1].body_sha256 == hashlib.sha256(b"".join(pieces)).hexdigest()
    assert len(reader.asked) == len(pieces) + 1
    assert min(reader.asked) > 0


def test_the_warning_of_an_unverified_server_is_urllib3s(h2: MockGPU) -> None:
    def told(**wanted: Any) -> list[str]:
        with netkit.Session(**wanted) as session, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session.trust_env = False
            session.get(f"{h2.url}/echo", verify=False)
            session.get(f"{h2.url}/echo", verify=False)
        return [f"{each.category.__name__} {each.filename} {str(each.message)[:57]}" for each in caught]

    ours = told()
    assert ours == told(plugins={"http2": False})
    assert len(ours) == 2
    with netkit.Session() as session, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="urllib3.connectionpool")
        session.trust_env = False
        assert session.get(f"{h2.url}/echo", verify=False).raw.version == 20


def test_an_early_413_is_an_answer(h2: MockGPU, caller: netkit.Session) -> None:
    h2.script(faults.EarlyResponse())
    answer = caller.post(f"{h2.url}/upload", data=b"x" * 3_000_000, timeout=30)
    assert (answer.status_code, answer.content) == (413, b"big")
    assert caller.get(f"{h2.url}/echo").ok
    assert len({request.connection for request in h2.log.requests}) == 1
    assert netkit.stats(caller).requests.attempts == 2


def test_a_warning_that_is_an_error_leaves_no_stream_open(h2: MockGPU, caller: netkit.Session) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InsecureRequestWarning) as raised:
            caller.get(f"{h2.url}/stream/100000?interval_ms=20", stream=True, verify=False)
    h2.log.wait(lambda log: any(event.kind == "rst_received" for event in log.events))
    assert netkit.stats(caller).http2.streams == 0
    del raised


@pytest.mark.parametrize("way", ["close", "timeout", "collected"])
def test_leaving_resets_the_stream_and_keeps_the_connection(h2: MockGPU, caller: netkit.Session, way: str) -> None:
    url = f"{h2.url}/stream/100000?interval_ms=20"
    if way == "timeout":
        with pytest.raises(native.ReadTimeout):
            caller.get(f"{h2.url}/delay/60000", timeout=(5, 0.05))
    else:
        answer = caller.get(url, stream=True)
        assert next(answer.iter_lines()).startswith(b"data:")
        if way == "close":
            answer.close()
        del answer
    h2.log.wait(lambda log: any(event.kind == "rst_received" for event in log.events))
    (reset,) = h2.log.of_kind("rst_received")
    assert reset.code == 8
    for _ in range(50):
        assert caller.get(f"{h2.url}/echo").ok
    assert len({request.connection for request in h2.log.requests}) == 1
    assert netkit.stats(caller).http2.streams == 0


def test_a_stream_limit_is_kept_and_everybody_is_served() -> None:
    with (
        MockGPU(launch_ms=20, gpus=64, settings={3: 4}) as gpu,
        netkit.Session(plugins={**PLAIN, "http2": {"max_connections": 2}}) as session,
    ):
        session.trust_env = False
        session.verify = gpu.ca_file or True

        def embed(number: int) -> int:
            return session.post(f"{gpu.url}/v1/embeddings", json={"model": "m", "input": f"{number}"}).status_code

        with ThreadPoolExecutor(24) as pool:
            assert list(pool.map(embed, range(24))) == [200] * 24
        assert len(gpu.log.connections) <= 2
        assert max(connection.peak_requests for connection in gpu.log.connections) <= 4


def test_a_body_that_raises_is_the_callers_own_error(h2: MockGPU, caller: netkit.Session) -> None:
    def broken() -> Iterator[bytes]:
        yield b"part"
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        caller.post(f"{h2.url}/upload", data=broken())
    assert caller.get(f"{h2.url}/echo").ok


def test_a_short_body_is_the_native_error(h2: MockGPU, caller: netkit.Session) -> None:
    h2.script(faults.ShortBody())
    with pytest.raises(native.ChunkedEncodingError):
        caller.get(f"{h2.url}/bytes/1000")
    h2.script(faults.ShortBody())
    answer = caller.get(f"{h2.url}/bytes/1000", stream=True)
    with pytest.raises(native.ChunkedEncodingError):
        answer.content  # noqa: B018 - reading is what raises
    assert netkit.stats(caller).requests.errors == 2


def test_hooks_see_the_body_before_anybody_read_it(h2: MockGPU, caller: netkit.Session) -> None:
    seen: list[bytes] = []

    def hook(response: requests.Response, **kwargs: Any) -> None:
        seen.append(response.raw.read())

    caller.get(f"{h2.url}/bytes/5", hooks={"response": hook})
    assert len(seen[0]) == 5


def test_raw_reads_like_urllib3(h2: MockGPU, caller: netkit.Session) -> None:
    answer = caller.get(f"{h2.url}/bytes/1000", stream=True)
    assert len(answer.raw.read(10)) == 10
    assert len(answer.raw.read1(5)) <= 5
    rest = answer.raw.read()
    assert 985 <= len(rest) <= 990
    assert answer.raw.read() == b""
    assert isinstance(io.BufferedReader(caller.get(f"{h2.url}/bytes/10", stream=True).raw).read(), bytes)


def test_no_warning_is_left_behind(h2: MockGPU) -> None:
    with warnings.catch_warnings(), netkit.Session() as session:
        warnings.simplefilter("error")
        session.trust_env = False
        session.verify = h2.ca_file or True
        for _ in range(3):
            session.get(f"{h2.url}/bytes/100000", stream=True)


class _Resends:
    """A layer that changes the body to one that is opened anew, and sends the request twice."""

    async def __call__(self, request: Any, send: Any) -> Any:
        changed = request.replace(body=netkit.Body.reopenable(lambda: iter([b"a", b"bc"]), 3))
        first = await send(changed)
        await first.discard()
        return await send(changed)


@pytest.mark.parametrize("plugins", [{**PLAIN, "http2": False}, PLAIN])
def test_a_changed_body_is_whole_each_time_it_is_sent(h2: MockGPU, plugins: dict[str, Any]) -> None:
    with netkit.Session(plugins=plugins) as session:
        session.trust_env = False
        session.verify = h2.ca_file or True
        edge = session._netkit_wiring.edge
        edge._default = compose([_Resends()], edge._default)
        assert session.post(f"{h2.url}/echo", data=b"old").json()["body"] == "abc"
    assert [request.body for request in h2.log.requests] == [b"abc", b"abc"]


@pytest.mark.parametrize("kind", ["file", "small chunks", "one long chunk"])
def test_a_body_taken_in_vain_is_sent_whole_through_a_proxy(tmp_path: Path, kind: str) -> None:
    """Through a tunnel the engine asks what the server speaks while it takes the body already."""
    from netkit.testing.conformance._proxy import Proxy

    path = tmp_path / "body"
    path.write_bytes(b"0123456789" * 1000)
    with MockGPU(http="1.1", launch_ms=0) as gpu, closing(Proxy()) as proxy, netkit.Session() as session:
        session.trust_env = False
        session.verify = gpu.ca_file or True
        session.proxies = {"https": proxy.url}
        with path.open("rb") as file:
            bodies: dict[str, tuple[Any, int]] = {
                "file": (file, 10_000),
                "small chunks": (iter([b"0123456789"] * 1000), 10_000),
                "one long chunk": (iter([b"x" * 3_000_000]), 3_000_000),
            }
            body, size = bodies[kind]
            assert session.post(f"{gpu.url}/upload", data=body).json()["size"] == size
        assert [request.body_size for request in gpu.log.requests] == [size]


def test_a_session_that_is_dropped_closes_its_connections(h2: MockGPU) -> None:
    session = netkit.Session()
    session.trust_env = False
    session.verify = h2.ca_file or True
    assert session.get(f"{h2.url}/echo").ok
    assert h2.stats().open_connections == 1
    del session
    gc.collect()
    h2.log.wait(lambda log: all(connection.closed for connection in log.connections))


@pytest.mark.parametrize("body", [bytearray(b"\1\2\3"), memoryview(b"\1\2\3")])
def test_buffers_are_sent_as_they_are(h2: MockGPU, caller: netkit.Session, body: Any) -> None:
    assert caller.post(f"{h2.url}/echo", data=body).ok
    assert [request.body for request in h2.log.requests] == [b"\1\2\3"]
    assert _protocols(h2) == {"HTTP/2"}


def test_a_reader_may_drop_its_iterator_and_read_on(h2: MockGPU, caller: netkit.Session) -> None:
    answer = caller.get(f"{h2.url}/bytes/1000", stream=True)
    assert len(next(answer.iter_content(10))) == 10
    assert len(answer.content) == 990


def test_origins_that_could_not_be_reached_leave_nothing_behind(caller: netkit.Session) -> None:
    for number in (1, 2, 3):
        with pytest.raises(native.ConnectionError):
            caller.get(f"https://127.0.0.1:{number}/")
    port: Any = caller._netkit_wiring.edge._context.http2
    known = port._negotiation
    assert (known._locks, known._http1, known._http2) == ({}, {}, set())


def test_a_refused_connection_is_no_timeout(caller: netkit.Session) -> None:
    with pytest.raises(native.ConnectionError) as caught:
        caller.get("https://127.0.0.1:1/")
    assert not isinstance(caught.value, native.Timeout)


def test_a_body_of_another_length_is_a_native_error(h2: MockGPU, caller: netkit.Session) -> None:
    with pytest.raises(requests.RequestException):
        caller.post(f"{h2.url}/echo", data=iter([b"ab"]), headers={"Content-Length": "9"})
    assert caller.get(f"{h2.url}/echo").ok


@pytest.mark.parametrize("timeout", ["5", (1, 2, 3), True, 0])
def test_a_bad_timeout_is_refused_as_before(h2: MockGPU, caller: netkit.Session, timeout: Any) -> None:
    with pytest.raises(ValueError, match="imeout"):
        caller.get(f"{h2.url}/echo", timeout=timeout)
    assert not h2.log.requests


@pytest.mark.parametrize("path", ["/echo?q=a b", "/echo/é€?[ü]", "/echo?q=%zz", "/echo?", "/echo?a#b c", "?bare"])
def test_a_url_that_was_put_in_by_hand_is_escaped_as_before(h2: MockGPU, caller: netkit.Session, path: str) -> None:
    with requests.Session() as native_session:
        native_session.trust_env = False
        native_session.verify = caller.verify
        for session in (native_session, caller):
            prepared = session.prepare_request(requests.Request("GET", f"{h2.url}/"))
            prepared.url = h2.url + path
            assert session.send(prepared).request is prepared
    before, now = h2.log.requests
    assert (before.protocol, now.protocol) == ("HTTP/1.1", "HTTP/2")
    assert now.path == before.path


@pytest.mark.parametrize("address", ["https://127.0.0.1:99999/", "https://[::1/", "https://\N{SNOWMAN}.test:1/"])
def test_a_url_that_is_none_is_refused_as_before(caller: netkit.Session, address: str) -> None:
    with requests.Session() as native_session:
        native_session.trust_env = False
        outcomes = []
        for session in (native_session, caller):
            prepared = session.prepare_request(requests.Request("GET", "https://host.test/"))
            prepared.url = address
            with pytest.raises((requests.RequestException, ValueError)) as caught:
                session.send(prepared, timeout=5)
            outcomes.append(caught.type)
    assert outcomes[0] is outcomes[1]


@pytest.mark.parametrize(
    "target",
    [
        "urllib3.connectionpool.HTTPSConnectionPool.urlopen",
        "urllib3.connection.HTTPSConnection.request",
        "http.client.HTTPConnection.endheaders",
    ],
)
def test_a_mock_anywhere_beneath_is_called(
    h2: MockGPU, caller: netkit.Session, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caller.get(f"{h2.url}/echo").ok

    def mocked(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(target, mocked)
    with pytest.raises(ZeroDivisionError):
        caller.get(f"{h2.url}/echo")
    assert len(h2.log.requests) == 1


# The raw response


def test_the_raw_response_is_urllib3s_own_whenever_it_is_looked_at(h2: MockGPU, caller: netkit.Session) -> None:
    early = caller.get(f"{h2.url}/echo", stream=True)
    assert isinstance(early.raw, HTTPResponse)
    assert (early.raw.status, early.raw.version, early.raw.reason) == (200, 20, "OK")
    assert early.raw.headers["content-type"] == early.headers["Content-Type"]
    assert not early.raw.closed
    assert early.json()["method"] == "GET"
    late = caller.get(f"{h2.url}/echo")
    assert late.raw.closed
    assert (late.raw.status, late.raw.read()) == (200, b"")
    assert not hasattr(late.raw, "no_such_thing")
    late.close()
    assert vars(late).keys() == vars(early).keys()


def test_what_is_set_on_the_raw_response_before_it_is_read_stays(h2: MockGPU, caller: netkit.Session) -> None:
    with caller.get(f"{h2.url}/bytes/5000?gzip=1", stream=True) as response:
        assert response.headers["content-encoding"] == "gzip"
        response.raw.decode_content = True
        assert response.raw.read() == expected_bytes(5000)


def test_a_raw_response_that_nobody_touched_resets_its_stream_when_dropped(
    h2: MockGPU, caller: netkit.Session
) -> None:
    assert caller.get(f"{h2.url}/stream/100000?interval_ms=20", stream=True).ok
    h2.log.wait(lambda log: any(event.kind == "rst_received" for event in log.events))
    assert caller.get(f"{h2.url}/echo").ok
    assert len({request.connection for request in h2.log.requests}) == 1


# Closing a session


@pytest.mark.parametrize("protocol", ["auto", "1.1"])
def test_an_answer_may_be_read_after_its_session_was_closed(protocol: str) -> None:
    with MockGPU(http=protocol, launch_ms=0) as gpu:
        with netkit.Session(plugins=PLAIN) as session:
            session.trust_env = False
            session.verify = gpu.ca_file or True
            answer = session.get(f"{gpu.url}/stream/50?interval_ms=2", stream=True)
            first = next(lines := answer.iter_lines())
        assert first.startswith(b"data:")
        assert sum(line.startswith(b"data:") for line in lines) >= 49
        del answer, lines  # urllib3's pools live as long as their answers
        gpu.log.wait(lambda log: all(connection.closed for connection in log.connections))
        assert not gpu.log.of_kind("rst_received")


def test_calls_under_way_end_well_when_their_session_is_closed(h2: MockGPU, caller: netkit.Session) -> None:
    caller.get(f"{h2.url}/echo")
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(caller.get, f"{h2.url}/delay/200?{number}") for number in range(8)]
        h2.log.wait(lambda log: len(log.requests) == 9)
        caller.close()
        assert [call.result().status_code for call in calls] == [200] * 8
    h2.log.wait(lambda log: any(event.kind == "goaway_received" for event in log.events))
    # And it may be used again, over a new connection.
    assert caller.get(f"{h2.url}/echo").ok
    assert len({request.connection for request in h2.log.requests}) == 2


def test_an_answer_that_is_left_after_the_close_ends_its_connection(h2: MockGPU, caller: netkit.Session) -> None:
    answer = caller.get(f"{h2.url}/stream/100000?interval_ms=20", stream=True)
    caller.close()
    assert next(answer.iter_lines()).startswith(b"data:")
    answer.close()
    h2.log.wait(lambda log: any(event.kind == "goaway_received" for event in log.events))
