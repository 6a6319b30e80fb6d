"""`netkit.install`: before or after import, with subclasses and live sessions, reversible, inherited by forks."""

from __future__ import annotations

import os

import pytest

from netkit.testing import MockGPU
from tests.patching.conftest import Program


def test_stacks_imported_before(program: Program) -> None:
    program("""
        import requests, httpx, httpx2, aiohttp, aiohttp.test_utils
        from requests import Session as kept_name, get as kept_function
        import netkit
        originals = (
            requests.Session, httpx.Client, httpx.AsyncClient, httpx2.Client, aiohttp.ClientSession, requests.get
        )
        netkit.install()
        netkit.install()
        assert requests.Session is requests.sessions.Session is kept_name is netkit.Session
        assert requests.get is kept_function is requests.api.get is not originals[-1]
        assert (httpx.Client, httpx.AsyncClient) == (netkit.Client, netkit.AsyncClient)
        assert httpx2.Client is netkit.httpx2.Client and aiohttp.ClientSession is netkit.ClientSession
        assert aiohttp.test_utils.ClientSession is netkit.ClientSession
        netkit.uninstall()
        assert originals == (
            requests.Session, httpx.Client, httpx.AsyncClient, httpx2.Client, aiohttp.ClientSession, requests.get
        )
        assert kept_name is originals[0] and kept_function is originals[-1]
        netkit.uninstall()
    """)


@pytest.mark.parametrize("first", ["requests", "netkit.requests", "netkit_adapters.requests"])
def test_a_stack_imported_after(program: Program, first: str) -> None:
    program(f"""
        import importlib, netkit
        netkit.install()
        assert "requests" not in sys.modules, "install imports no stack"
        importlib.import_module({first!r})
        import requests
        assert requests.Session is netkit.Session
        assert type(requests.__loader__).__name__ == type(requests.__spec__.loader).__name__ == "SourceFileLoader"
        netkit.uninstall()
        assert requests.Session is not netkit.Session
        import httpx
        assert httpx.Client is not netkit.Client, "nothing is patched any more"
    """)


def test_calls_pass_the_chain_over_http2(program: Program, gpu: MockGPU) -> None:
    before = len(gpu.log.requests)
    program("""
        import asyncio, ssl, netkit
        netkit.install()
        import requests, httpx, httpx2, aiohttp
        trust = ssl.create_default_context(cafile=CA)
        with requests.Session() as session:
            assert session.post(EMBED, json=BODY, verify=CA).raw.version == 20
        assert requests.post(EMBED, json=BODY, verify=CA).raw.version == 20
        for stack in (httpx, httpx2):
            with stack.Client(verify=trust) as client:
                assert client.post(EMBED, json=BODY).http_version == "HTTP/2"
        async def tasks():
            for stack in (httpx, httpx2):
                async with stack.AsyncClient(verify=trust) as client:
                    assert (await client.post(EMBED, json=BODY)).http_version == "HTTP/2"
            async with aiohttp.ClientSession() as session, session.post(EMBED, json=BODY, ssl=trust) as answer:
                assert answer.version == (2, 0)
        asyncio.run(tasks())
    """)
    protocols = {connection.id: connection.protocol for connection in gpu.log.connections}
    assert [protocols[request.connection] for request in gpu.log.requests[before:]] == ["HTTP/2"] * 7


def test_subclasses_and_live_sessions(program: Program) -> None:
    program("""
        import requests, httpx, ssl
        class Legacy(requests.Session):
            def __init__(self):
                requests.Session.__init__(self)
                self.verify = CA
            def get_adapter(self, url):
                return super().get_adapter(url)
        class Deeper(Legacy):
            pass
        class Skipping(requests.Session):
            def __init__(self):
                super().__init__()
                self.verify = CA
        plain, legacy, deeper = requests.Session(), Legacy(), Deeper()
        client = httpx.Client(verify=ssl.create_default_context(cafile=CA))
        plain.verify = CA
        plain.headers["X-Mine"] = "kept"
        kind = type(plain)
        import netkit
        netkit.install()
        for session in (plain, legacy, deeper, Legacy(), Skipping()):
            assert isinstance(session, requests.Session)
            assert session.post(EMBED, json=BODY).raw.version == 20
            assert netkit.stats(session).requests.total == 1
        assert plain.headers["X-Mine"] == "kept"
        assert isinstance(client, httpx.Client) and client.post(EMBED, json=BODY).http_version == "HTTP/2"
        netkit.uninstall()
        assert type(plain) is kind is requests.Session and Legacy.__bases__ == (kind,)
        for session in (plain, legacy, deeper):
            assert session.post(EMBED, json=BODY).raw.version == 11
            try:
                netkit.stats(session)
            except TypeError:
                pass
            else:
                raise AssertionError("netkit is still there")
        assert type(client) is httpx.Client and client.post(EMBED, json=BODY).http_version == "HTTP/1.1"
        for session in (plain, legacy, deeper, client):
            session.close()
    """)


def test_what_looks_at_sessions_bears_with_one_that_was_released(program: Program) -> None:
    """Its counters are read, and its connections swept, also after netkit has let go of it."""
    program("""
        import requests, netkit
        from netkit import monitor
        from netkit.facade import edge_of
        from netkit_plugins.pool import sweep
        session = requests.Session()
        session.verify = CA
        netkit.install()
        with netkit.overrides(http2=False):
            assert session.post(EMBED, json=BODY).raw.version == 11
        edge = edge_of(session)
        (pool,) = sweep._of_threads._watched
        assert edge.stats().pool.open == 1
        netkit.uninstall()
        assert session.post(EMBED, json=BODY).raw.version == 11
        assert edge.stats().pool.open == 0
        assert edge.stats().pool.opened_total == 1
        assert pool.sweep() is False
        assert monitor.snapshot()["stacks"]["requests"]["requests"] == 1
        session.close()
    """)


def test_a_live_aiohttp_session(program: Program) -> None:
    program("""
        import aiohttp, asyncio, ssl, netkit
        async def main():
            trust = ssl.create_default_context(cafile=CA)
            async with aiohttp.ClientSession() as session:
                async with session.post(EMBED, json=BODY, ssl=trust) as answer:
                    assert answer.version == (1, 1)
                netkit.install()
                async with session.post(EMBED, json=BODY, ssl=trust) as answer:
                    assert answer.version == (2, 0)
                assert netkit.stats(session).requests.total == 1
                netkit.uninstall()
                assert type(session) is aiohttp.ClientSession
                async with session.post(EMBED, json=BODY, ssl=trust) as answer:
                    assert answer.version == (1, 1)
        asyncio.run(main())
    """)


def test_a_session_attached_by_hand_keeps_its_settings(program: Program) -> None:
    program("""
        import requests, netkit
        session = netkit.attach(requests.Session(), plugins={"http2": False})
        session.verify = CA
        netkit.install()
        assert session.post(EMBED, json=BODY).raw.version == 11
        assert netkit.stats(session).requests.total == 1
        netkit.uninstall()
        assert session.post(EMBED, json=BODY).raw.version == 11
        assert netkit.stats(session).requests.total == 2
        session.close()
    """)


def test_an_sdk_needs_nothing(program: Program) -> None:
    program("""
        import os, ssl, netkit
        netkit.install()
        os.environ["SSL_CERT_FILE"] = CA
        import openai
        with openai.OpenAI(base_url=URL + "/v1", api_key="k") as sdk:
            answer = sdk.embeddings.with_raw_response.create(model="m", input="x")
            assert answer.http_response.http_version == "HTTP/2"
            assert netkit.stats(sdk._client).requests.total == 1
    """)


def test_a_mock_stays_a_mock(program: Program) -> None:
    program("""
        import requests, netkit
        from unittest import mock
        netkit.install()
        with mock.patch("requests.get", return_value="mocked"):
            assert requests.get(EMBED) == "mocked"
        with mock.patch("requests.adapters.HTTPAdapter.send", side_effect=requests.ConnectionError("mocked")):
            try:
                requests.get(EMBED)
            except requests.ConnectionError as error:
                assert "mocked" in str(error)
            else:
                raise AssertionError("real traffic")
    """)


def test_wrong_settings_change_nothing(program: Program, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETKIT_RETRY__ATTEMPTS", "many")
    program("""
        import requests, netkit
        original = requests.Session
        try:
            netkit.install()
        except netkit.ConfigError as error:
            assert "NETKIT_RETRY__ATTEMPTS" in str(error)
        else:
            raise AssertionError("no error")
        assert requests.Session is original
    """)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_workers(program: Program, gpu: MockGPU) -> None:
    before = len(gpu.log.requests)
    program("""
        import os, requests, netkit
        netkit.install()
        session = requests.Session()
        session.verify = CA
        assert session.post(EMBED, json=BODY).raw.version == 20
        children = []
        for number in range(4):
            child = os.fork()
            if child == 0:
                try:
                    assert requests.Session is netkit.Session
                    assert [session.post(EMBED, json=BODY).raw.version for _ in range(3)] == [20, 20, 20]
                except BaseException:
                    os._exit(1)
                os._exit(0)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0, 0]
        assert session.post(EMBED, json=BODY).raw.version == 20
        session.close()
    """)
    assert len(gpu.log.requests) - before == 14


@pytest.mark.parametrize("stack", ["requests", "httpx", "httpx2"])
def test_sessions_that_are_frozen_are_found(program: Program, stack: str) -> None:
    program(
        """
        import gc, netkit
        stack = __import__(sys.argv[3])
        kind = stack.Session if sys.argv[3] == "requests" else stack.Client
        class Own(kind): pass
        class Holder: pass
        def closed_over():
            inner = Own()
            return lambda: inner
        session, Holder.session, listed, hidden = kind(), kind(), [{"deep": (kind(),)}], closed_over()
        everywhere = lambda: [session, Holder.session, listed[0]["deep"][0], hidden()]
        gc.collect()
        gc.freeze()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, kind)]
        netkit.install()
        for each in everywhere():
            assert netkit.stats(each).requests.total == 0
        assert gc.get_freeze_count() > 1000  # they stay frozen
        netkit.uninstall()
        assert [type(each) for each in everywhere()] == [kind, kind, kind, Own]
        for each in everywhere():
            assert not [name for name in vars(each) if name.startswith("_netkit")]
            each.close()
        """,
        stack,
    )
