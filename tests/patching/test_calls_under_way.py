"""`uninstall` while others are in the middle of a call: what they began goes on to its end."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import requests
from netkit_adapters.reverted import REVERTED, native

import netkit
from tests.patching.conftest import Program

REQUESTS = """
    import requests
    ROUNDS, kind = 20, requests.Session
    restored = lambda: requests.Session
    def opened():
        made = requests.Session()
        made.verify = CA
        return made
    client = opened()
    client.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=8))
"""
HTTPX = """
    import ssl, {stack}
    TRUST = ssl.create_default_context(cafile=CA)
    def opened():
        return {stack}.Client(verify=TRUST)
    client = opened()
    ROUNDS, kind = 6, type(client)
    restored = lambda: {stack}.Client
"""


@pytest.mark.parametrize("stack", ["requests", "httpx", "httpx2"])
def test_threads_make_calls_while_it_comes_and_goes(program: Program, stack: str) -> None:
    setup = textwrap.dedent(REQUESTS if stack == "requests" else HTTPX.format(stack=stack))
    program(
        setup
        + textwrap.dedent("""
        import threading, netkit
        stop, started, failures, answered = threading.Event(), threading.Barrier(9), [], []
        def work():
            started.wait()
            while not stop.is_set():
                try:
                    assert client.post(EMBED, json=BODY).status_code == 200
                    with opened() as own:
                        assert own.post(EMBED, json=BODY).status_code == 200
                    answered.append(1)
                except BaseException as error:
                    failures.append(error)
                    return
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        started.wait()
        for _ in range(ROUNDS):
            before = len(answered)
            netkit.install()
            while len(answered) < before + 4 and not failures:
                stop.wait(0.001)
            netkit.uninstall()
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        assert type(client) is kind is restored() is not netkit.Session
        if kind.__module__.split(".")[0] != "requests":
            assert not [name for name in vars(client) if name.startswith("_netkit")]
        client.close()
    """)
    )


@pytest.mark.parametrize("stack", ["requests", "httpx", "httpx2"])
def test_a_body_that_is_being_read_in_a_thread_goes_on(program: Program, stack: str) -> None:
    program(
        """
        import gc, ssl, threading, netkit
        name = sys.argv[3]
        begun, go_on, read = threading.Event(), threading.Event(), []
        if name == "requests":
            import requests
            client = requests.Session()
            client.verify = CA
        else:
            client = __import__(name).Client(verify=ssl.create_default_context(cafile=CA))
        def work(pieces):
            for piece in pieces:
                read.append(piece)
                begun.set()
                assert go_on.wait(30)
        def call():
            if name == "requests":
                with client.get(URL + "/stream/4?interval_ms=100", stream=True) as answer:
                    version.append(answer.raw.version)
                    work(answer.iter_content(None))
            else:
                with client.stream("GET", URL + "/stream/4?interval_ms=100") as answer:
                    version.append(answer.extensions["http_version"])
                    work(answer.iter_raw())
        version = []
        netkit.install()
        thread = threading.Thread(target=call)
        thread.start()
        assert begun.wait(30)
        netkit.uninstall()
        gc.collect()
        go_on.set()
        thread.join()
        assert version in ([20], [b"HTTP/2"]), version
        assert b"".join(read).count(b"data:") == 5, read
        client.close()
        """,
        stack,
    )


@pytest.mark.parametrize("stack", ["httpx", "httpx2", "aiohttp"])
def test_a_body_that_is_being_read_in_a_task_goes_on(program: Program, stack: str) -> None:
    program(
        """
        import asyncio, contextlib, gc, ssl, netkit
        name = sys.argv[3]
        trust = ssl.create_default_context(cafile=CA)
        async def main():
            begun, go_on, read = asyncio.Event(), asyncio.Event(), []
            if name == "aiohttp":
                import aiohttp
                client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust))
                opened = lambda: client.get(URL + "/stream/4?interval_ms=100")
                pieces = lambda answer: answer.content.iter_any()
            else:
                client = __import__(name).AsyncClient(verify=trust)
                opened = lambda: client.stream("GET", URL + "/stream/4?interval_ms=100")
                pieces = lambda answer: answer.aiter_raw()
            async def call():
                async with opened() as answer:
                    version.append(getattr(answer, "http_version", None) or answer.version)
                    async for piece in pieces(answer):
                        read.append(piece)
                        begun.set()
                        await go_on.wait()
            version = []
            netkit.install()
            task = asyncio.create_task(call())
            await asyncio.wait_for(begun.wait(), 30)
            netkit.uninstall()
            gc.collect()
            go_on.set()
            await task
            assert version in (["HTTP/2"], [(2, 0)]), version
            assert b"".join(read).count(b"data:") == 5, read
            await (client.close() if name == "aiohttp" else client.aclose())
            # Its connections are closed once nobody uses them.
            del client, opened, task
            gc.collect()
            for _ in range(4):
                await asyncio.sleep(0)
        asyncio.run(main())
        """,
        stack,
    )


BOUND = """
    import contextlib, ssl, warnings, netkit
    name = sys.argv[3]
    warnings.simplefilter("ignore")
    trust = ssl.create_default_context(cafile=CA)
    stack = __import__(name)
    def kinds(base):
        class Derived(base):
            def send(self, *args, **kwargs):
                sent.append(1)
                return super().send(*args, **kwargs)
        return base, Derived
    sent = []
"""


@pytest.mark.parametrize("stack", ["requests", "httpx", "httpx2"])
def test_a_method_that_was_found_before_is_the_stacks_own_afterwards(program: Program, stack: str) -> None:
    program(
        textwrap.dedent(BOUND)
        + textwrap.dedent("""
        for kind in kinds(stack.Session if name == "requests" else stack.Client):
            client = kind() if name == "requests" else kind(verify=trust)
            if name == "requests":
                client.verify = CA
            sent.clear()
            netkit.install()
            assert client.get(URL + "/health").status_code == 200
            assert netkit.stats(client).requests.total == 1
            if name == "requests":
                prepared = client.prepare_request(stack.Request("GET", URL + "/health"))
                found = [client.request, client.get, client.send, client.get_adapter, client.close]
            else:
                found = [client.request, client.get, client.send, client.build_request, client.close]
                inner = [client._merge_url, client._build_request_auth, client._send_single_request]
                own, wiring = type(client)._send_single_request, client._netkit_wiring
            netkit.uninstall()
            request, get, send, other, close = found
            assert request("GET", URL + "/health").status_code == 200
            assert get(URL + "/health").status_code == 200
            if name == "requests":
                assert send(prepared).status_code == 200
                assert other(URL) is client.adapters["https://"]
            else:
                built = other("GET", URL + "/health")
                assert send(built).status_code == 200
                merge, authenticate, single = inner
                assert str(merge(URL + "/x")) == URL + "/x"
                assert authenticate(built) is not None
                single(client.build_request("GET", URL + "/health")).close()
            assert len(sent) == (0 if kind.__name__ != "Derived" else 4), sent
            close()
            assert not [key for key in vars(client) if key.startswith("_netkit")], vars(client)
            assert name == "requests" or client.is_closed
        """),
        stack,
    )


@pytest.mark.parametrize("stack", ["requests", "httpx", "httpx2"])
def test_a_with_block_outlasts_it(program: Program, stack: str) -> None:
    program(
        textwrap.dedent(BOUND)
        + textwrap.dedent("""
        client = stack.Session() if name == "requests" else stack.Client(verify=trust)
        netkit.install()
        with client:
            netkit.uninstall()
        assert name == "requests" or client.is_closed
        if name != "requests":
            import asyncio
            async def main():
                client = stack.AsyncClient(verify=trust)
                netkit.install()
                async with client:
                    waiting = client.get(URL + "/health")     # a coroutine that has not begun
                    sending = client.send(client.build_request("GET", URL + "/health"))
                    single = client._send_single_request(client.build_request("GET", URL + "/health"))
                    netkit.uninstall()
                    assert (await waiting).status_code == 200
                    assert (await sending).status_code == 200
                    await (await single).aclose()
                assert client.is_closed
                client = stack.AsyncClient(verify=trust)
                netkit.install()
                closing = client.aclose()
                netkit.uninstall()
                await closing
                assert client.is_closed
            asyncio.run(main())
        """),
        stack,
    )


def test_aiohttp_goes_on_where_it_was_found(program: Program) -> None:
    program(
        """
        import asyncio, ssl, warnings, aiohttp, netkit
        warnings.simplefilter("ignore")
        trust = ssl.create_default_context(cafile=CA)
        async def main():
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust))
            netkit.install()
            async with session:
                request, connect = session._request, session._ws_connect
                close, shown = session.close, session.__repr__
                begun = session.get(URL + "/health")
                netkit.uninstall()
                for answer in (await begun, await request("GET", URL + "/health")):
                    assert answer.status == 200
                    await answer.read()
                try:
                    await connect(URL + "/health")
                except aiohttp.WSServerHandshakeError:
                    pass
                assert "ClientSession" in shown()
                await close()
            assert session.closed
        asyncio.run(main())
        """
    )


def test_an_error_of_the_programs_own_is_not_taken_for_it() -> None:
    def meet(session: requests.Session) -> Any:
        try:
            raise AttributeError("mine")
        except REVERTED:
            return native(session, netkit.Session, requests.Session)

    with pytest.raises(AttributeError, match="mine"):
        meet(netkit.Session())
    plain = requests.Session()
    assert meet(plain).get_adapter.__self__ is plain
