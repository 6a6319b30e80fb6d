"""What legacy code relies on: one test per fact of requests that a replaced Session could break."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import requests
from netkit_adapters.requests.transport import ChainedAdapter
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.response import HTTPResponse

import netkit
from netkit.testing import MockGPU, expected_vector


class Recording(HTTPAdapter):
    """An adapter of the user's own that answers without a network."""

    def __init__(self, body: bytes = b"mock") -> None:
        super().__init__()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.body = body

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        self.calls.append((request.url or "", kwargs))
        raw = HTTPResponse(body=io.BytesIO(self.body), status=200, preload_content=False, decode_content=False)
        return self.build_response(request, raw)


def test_embeddings_come_back_as_the_vector_of_the_input(gpu: MockGPU, session: netkit.Session) -> None:
    answer = session.post(f"{gpu.url}/v1/embeddings", json={"model": "m", "input": "hello"}, timeout=10)
    assert answer.json()["data"][0]["embedding"] == pytest.approx(expected_vector("hello", dimensions=8))
    assert [request.path for request in gpu.log.requests] == ["/v1/embeddings"]


def test_session_is_a_requests_session_that_needs_no_arguments() -> None:
    assert issubclass(netkit.Session, requests.Session)
    with netkit.Session() as session:
        assert isinstance(session, requests.Session)


def test_the_class_is_picklable_by_name() -> None:
    assert pickle.loads(pickle.dumps(netkit.Session)) is netkit.Session


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_keep_settings_and_work(gpu: MockGPU, clone: Any) -> None:
    with netkit.Session(plugins={"retry": {"attempts": 7}}) as session:
        session.headers["X-Kept"] = "yes"
        with clone(session) as twin:
            assert twin._netkit_settings == session._netkit_settings
            assert twin.get(f"{gpu.url}/echo").status_code == 200
    assert gpu.log.requests[0].header("x-kept") == "yes"


def test_a_subclass_that_skips_init_still_works(gpu: MockGPU) -> None:
    class Skips(netkit.Session):
        def __init__(self) -> None:
            requests.Session.__init__(self)

    with Skips() as session:
        assert session.get(f"{gpu.url}/echo").ok
        assert netkit.stats(session).requests.total == 1


def test_overridden_methods_run_in_the_native_order(gpu: MockGPU) -> None:
    seen: list[str] = []

    class Traced(netkit.Session):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("request")
            return super().request(*args, **kwargs)

        def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
            seen.append("prepare_request")
            return super().prepare_request(request)

        def merge_environment_settings(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("merge_environment_settings")
            return super().merge_environment_settings(*args, **kwargs)

        def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
            seen.append("send")
            return super().send(request, **kwargs)

        def get_adapter(self, url: str) -> BaseAdapter:
            seen.append("get_adapter")
            return super().get_adapter(url)

    with Traced() as session:
        assert session.get(f"{gpu.url}/echo").ok
        assert netkit.stats(session).requests.total == 1
    assert seen == ["request", "prepare_request", "merge_environment_settings", "send", "get_adapter"]


def test_a_class_between_netkit_and_requests_keeps_its_say(gpu: MockGPU) -> None:
    """What requests-cache and its like do: a mixin with a `send` of its own, next in the order of classes."""
    seen: list[str] = []

    class Mixin(requests.Session):
        def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
            seen.append("mixin")
            return super().send(request, **kwargs)

    class Both(netkit.Session, Mixin):
        pass

    with Both() as session:
        assert session.get(f"{gpu.url}/echo").ok
        assert netkit.stats(session).requests.total == 1
    assert seen == ["mixin"]


def test_get_adapter_gives_users_the_mounted_object(session: netkit.Session) -> None:
    mine = Recording()
    session.mount("https://api.example/", mine)
    assert session.get_adapter("https://api.example/v1") is mine
    assert session.get_adapter("HTTPS://API.EXAMPLE/v1") is mine
    with pytest.raises(requests.exceptions.InvalidSchema):
        session.get_adapter("gopher://x")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_mounted_adapter_is_called_once_through_the_chain(session: netkit.Session, when: str) -> None:
    mine = Recording()
    if when == "after":
        session.adapters["http://mounted/"] = Recording(b"old")
    session.mount("http://mounted/", mine)
    assert session.get("http://mounted/x").content == b"mock"
    assert [url for url, _ in mine.calls] == ["http://mounted/x"]
    assert netkit.stats(session).requests.attempts == 1


def test_arguments_reach_the_adapter_unchanged(session: netkit.Session) -> None:
    mine = Recording()
    session.mount("http://mounted/", mine)
    session.get("http://mounted/x", timeout=(1, 2), verify=False, cert=("a", "b"), proxies={"http": "http://p"})
    assert mine.calls[0][1] == {
        "stream": False,
        "timeout": (1, 2),
        "verify": False,
        "cert": ("a", "b"),
        "proxies": {"http": "http://p"},
    }


def test_get_adapter_set_on_the_instance_wins(session: netkit.Session) -> None:
    """requests-mock leaves such an attribute behind."""
    mine = Recording(b"instance")
    session.get_adapter = lambda url: mine  # type: ignore[method-assign,assignment]
    assert session.get("http://nowhere.invalid/").content == b"instance"
    assert netkit.stats(session).requests.total == 1


def test_a_patched_http_adapter_never_becomes_real_traffic(
    gpu: MockGPU, session: netkit.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `responses` does."""
    mine = Recording(b"patched")
    monkeypatch.setattr(HTTPAdapter, "send", lambda self, request, **kwargs: mine.send(request, **kwargs))
    assert session.get(f"{gpu.url}/echo").content == b"patched"
    assert not gpu.log.requests


def test_a_patched_session_send_is_called(session: netkit.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = requests.Response()
    answer.status_code = 299
    monkeypatch.setattr(requests.Session, "send", lambda self, request, **kwargs: answer)
    assert session.get("http://nowhere.invalid/").status_code == 299


def test_redirects_pass_send_per_hop_and_keep_history(gpu: MockGPU, session: netkit.Session) -> None:
    answer = session.get(f"{gpu.url}/redirect/3")
    assert [hop.status_code for hop in answer.history] == [302, 302, 302]
    assert [request.path for request in gpu.log.requests][:2] == ["/redirect/3", "/redirect/2"]
    assert netkit.stats(session).requests.total == 4
    session.max_redirects = 1
    with pytest.raises(requests.TooManyRedirects):
        session.get(f"{gpu.url}/redirect/3")


def test_allow_redirects_false_gives_next(gpu: MockGPU, session: netkit.Session) -> None:
    answer = session.get(f"{gpu.url}/redirect/1", allow_redirects=False)
    assert answer.status_code == 302
    assert answer.next is not None
    assert answer.next.url == f"{gpu.url}/redirect/0"


def test_auth_is_stripped_across_hosts(gpu: MockGPU, session: netkit.Session) -> None:
    other = gpu.url.replace("127.0.0.1", "localhost")
    session.get(f"{gpu.url}/redirect-to", params={"url": f"{other}/echo"}, auth=("u", "p"))
    assert gpu.log.requests[0].header("authorization") is not None
    assert gpu.log.requests[1].header("authorization") is None


def test_cookies_are_taken_and_sent(gpu: MockGPU, session: netkit.Session) -> None:
    answer = session.get(f"{gpu.url}/cookies/set", params={"a": "b", "c": "d"}, allow_redirects=False)
    assert answer.cookies.get_dict() == {"a": "b", "c": "d"}
    session.get(f"{gpu.url}/echo")
    assert gpu.log.requests[-1].header("cookie") == "a=b; c=d"


def test_basic_and_digest_auth(gpu: MockGPU, session: netkit.Session) -> None:
    from requests.auth import HTTPDigestAuth

    assert session.get(f"{gpu.url}/basic-auth/user/secret", auth=("user", "secret")).status_code == 200
    answer = session.get(f"{gpu.url}/digest-auth/user/secret", auth=HTTPDigestAuth("user", "secret"))
    assert answer.status_code == 200
    # The second leg goes through `response.connection`, and that is the chain too.
    assert isinstance(answer.connection, ChainedAdapter)
    assert netkit.stats(session).requests.total == 3


def test_hooks_run_per_hop_with_their_arguments(gpu: MockGPU, session: netkit.Session) -> None:
    seen: list[tuple[int, set[str]]] = []

    def hook(response: requests.Response, **kwargs: Any) -> None:
        seen.append((response.status_code, set(kwargs)))

    session.get(f"{gpu.url}/redirect/1", hooks={"response": hook})
    assert [status for status, _ in seen] == [302, 200]
    assert seen[0][1] >= {"stream", "verify", "cert", "timeout", "proxies"}


def test_streaming_is_lazy_and_not_streaming_is_not(gpu: MockGPU, session: netkit.Session) -> None:
    lazy = session.get(f"{gpu.url}/bytes/1000", stream=True)
    assert not lazy._content_consumed
    assert len(lazy.content) == 1000
    assert session.get(f"{gpu.url}/bytes/1000")._content_consumed


@pytest.mark.parametrize("query", ["", "?chunked=1", "?gzip=1", "?gzip=1&chunked=1", "?deflate=1"])
def test_bodies_and_encodings(gpu: MockGPU, session: netkit.Session, query: str) -> None:
    from netkit.testing.mock_gpu import expected_bytes

    assert session.get(f"{gpu.url}/bytes/70000{query}").content == expected_bytes(70000)
    with session.get(f"{gpu.url}/bytes/70000{query}", stream=True) as answer:
        assert b"".join(answer.iter_content(1000)) == expected_bytes(70000)


@pytest.mark.parametrize(("method", "path", "status"), [("HEAD", "/bytes/10", 200), ("GET", "/status/204", 204)])
def test_answers_without_a_body(gpu: MockGPU, session: netkit.Session, method: str, path: str, status: int) -> None:
    answer = session.request(method, f"{gpu.url}{path}")
    assert (answer.status_code, answer.content) == (status, b"")
    assert netkit.stats(session).requests.in_flight == 0
    assert netkit.stats(session).pool.in_use == 0


def test_response_has_what_callers_read(gpu: MockGPU, session: netkit.Session, http: str) -> None:
    answer = session.get(f"{gpu.url}/echo")
    assert answer.elapsed.total_seconds() > 0
    assert isinstance(answer.raw, HTTPResponse)
    assert answer.raw.version == (20 if http == "2" else 11)
    assert answer.reason == "OK"
    assert {request.protocol for request in gpu.log.requests} == {"HTTP/2" if http == "2" else "HTTP/1.1"}
    assert answer.request.url == answer.url
    assert answer.encoding == "utf-8"


def test_send_wants_a_prepared_request(session: netkit.Session) -> None:
    with pytest.raises(ValueError, match="PreparedRequest"):
        session.send(requests.Request("GET", "http://x/"))  # type: ignore[arg-type]


def test_module_functions_keep_no_cookies(gpu: MockGPU) -> None:
    from netkit import requests as mirrored

    mirrored.get(f"{gpu.url}/cookies/set", params={"a": "b"})
    assert mirrored.get(f"{gpu.url}/echo").ok
    assert gpu.log.requests[-1].header("cookie") is None
    # Connections are kept, though: that is what the module functions gain.
    assert len({request.connection for request in gpu.log.requests}) == 1


def test_mirror_shows_the_originals_names() -> None:
    from netkit.requests.exceptions import ConnectionError as MirroredError
    from netkit.requests.sessions import Session as Mirrored

    import netkit.requests as mirrored

    assert mirrored.exceptions is requests.exceptions
    assert MirroredError is requests.ConnectionError
    assert mirrored.Response is requests.Response
    assert mirrored.Session is Mirrored is netkit.Session
    assert requests.sessions.Session is requests.Session is not netkit.Session


def test_attach_and_detach_restore_the_original(gpu: MockGPU) -> None:
    with requests.Session() as session:
        before = dict(session.__dict__)
        assert netkit.attach(session) is session
        netkit.attach(session)
        assert session.get(f"{gpu.url}/redirect/1").ok
        assert netkit.stats(session).requests.total == 2
        netkit.detach(session)
        assert session.__dict__ == before
        assert session.get(f"{gpu.url}/echo").ok
        with pytest.raises(TypeError, match="not attached"):
            netkit.stats(session)


def test_a_request_passes_one_chain_even_when_wrapped_twice(gpu: MockGPU, session: netkit.Session) -> None:
    session.mount("http://", session._netkit_wiring and ChainedAdapter(session._netkit_wiring, HTTPAdapter()))
    assert session.get(f"{gpu.url}/echo").ok
    assert netkit.stats(session).requests.total == 1
    assert len(gpu.log.requests) == 1


def test_listeners_see_start_and_end_and_cannot_break_a_call(
    gpu: MockGPU, session: netkit.Session, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def broken(event: Any) -> None:
        raise ValueError("listener")

    remove_broken, remove = netkit.listen(session, broken), netkit.listen(session, seen.append)
    assert session.get(f"{gpu.url}/echo?api_key=SECRET").ok
    remove_broken()
    remove()
    session.get(f"{gpu.url}/echo")
    calls = [event for event in seen if type(event).__name__.startswith("Call")]
    assert [type(event).__name__ for event in calls] == ["CallStarted", "CallEnded"]
    assert calls[1].status == 200
    assert "SECRET" not in repr(seen)
    assert "a listener failed" in caplog.text


def test_the_chain_can_be_changed_for_the_calls_inside(gpu: MockGPU, session: netkit.Session) -> None:
    with netkit.overrides(retry=False, pool=False):
        assert session.get(f"{gpu.url}/echo").ok
    with pytest.raises(netkit.ConfigError, match="attempts"), netkit.overrides(retry={"atempts": 1}):
        pass


def test_closing_twice_is_fine_and_reuse_after_close_works(gpu: MockGPU) -> None:
    session = netkit.Session()
    session.get(f"{gpu.url}/echo")
    session.close()
    session.close()
    assert session.get(f"{gpu.url}/echo").ok
    session.close()


def test_without_any_plugin_the_native_call_is_made_and_counted(gpu: MockGPU) -> None:
    off = {"retry": False, "pool": False, "http2": False}
    with netkit.Session(plugins=off) as session:
        assert session.get(f"{gpu.url}/echo").ok
        with pytest.raises(requests.ConnectionError):
            session.get("http://127.0.0.1:1/")
        stats = netkit.stats(session).requests
        assert (stats.total, stats.attempts, stats.errors, stats.in_flight) == (2, 2, 1, 0)
        seen: list[Any] = []
        netkit.listen(session, seen.append)
        assert session.get(f"{gpu.url}/echo").ok
        assert len(seen) == 2
