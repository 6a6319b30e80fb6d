"""`uninstall` while others are in the middle of a call: what they began goes on to its end."""

from __future__ import annotations

import textwrap

import pytest

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
