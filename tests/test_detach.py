"""A detached request outlives its call on every stack: sent after the caller was cancelled, or ran out of time."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import pytest

import netkit
from netkit import Context, Request, Response, Send, hookimpl, stats
from netkit.plugins import registry
from netkit.testing import MockGPU, conformance
from netkit.testing.conformance import FACES
from netkit.testing.mock_gpu import Answer, Exchange, Signal

SENT: list[Any] = []


@dataclasses.dataclass(frozen=True)
class _Options:
    """No options."""


class _Outliving:
    """Sends each request with a body in a task or thread of its own, and keeps what came of it."""

    def __init__(self, options: _Options, context: Context) -> None:
        self._runtime = context.runtime

    async def __call__(self, request: Request, send: Send) -> Response:
        if not request.body.content:
            return await send(request)
        event = self._runtime.event()
        outcome: list[Any] = []
        apart = request.detach().replace(body=netkit.messages.Body.of(b"instead of " + request.body.content))

        async def work() -> None:
            try:
                response = await send(apart)
                outcome.append(Response.of(response.status, response.headers, await response.read()))
                response.body.end()
            except Exception as error:
                outcome.append(error)
            finally:
                event.set()

        SENT.append((event, outcome))
        self._runtime.spawn(work(), name="outliving")
        await event.wait()
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]  # type: ignore[no-any-return]


class _Plugin:
    __name__ = "tests.outliving"

    @hookimpl
    def netkit_register(self, register: Any) -> None:
        register("outliving", _Outliving, options=_Options)


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    if "outliving" not in registry().names():
        registry().register(_Plugin(), "tests.outliving")


@pytest.mark.parametrize("http", ["1.1", "2"])
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_it_is_sent_although_its_caller_left(face: Any, http: str) -> None:
    signal = Signal()
    SENT.clear()

    async def slow(exchange: Exchange) -> Answer:
        await signal.wait_async()
        return Answer(200, [], exchange.content)

    async def scenario(gpu: MockGPU) -> None:
        gpu.route("/slow", slow)
        session = face.open(
            {"outliving": True, "http2": http == "2", "retry": False}, {"verify": gpu.ca_file or True}
        )
        url = f"{gpu.url}/slow"
        if face.is_async:
            call = asyncio.ensure_future(session.request("POST", url, content=b"this"))
            await gpu.log.wait_async(lambda log: log.requests)
            call.cancel()
            assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError)
        else:
            thread = threading.Thread(
                target=lambda: netkit.flow.run_sync(session.request("POST", url, content=b"this"))
            )
            thread.start()
            gpu.log.wait(lambda log: log.requests)
        signal.set()
        event, outcome = SENT[0]
        if face.is_async:
            while not event.is_set():
                await asyncio.sleep(0)
        else:
            thread.join()
        assert await outcome[0].read() == b"instead of this"
        assert [record.status for record in gpu.log.requests] == [200]
        assert stats(session.native).requests.attempts == 1
        await session.close()

    with MockGPU(tls=http == "2", http="auto" if http == "2" else "1.1") as gpu:
        conformance._bench.run(face, scenario(gpu))  # type: ignore[attr-defined]


@pytest.mark.parametrize("http", ["1.1", "2"])
def test_aiohttps_total_time_does_not_reach_it_and_its_own_timeout_does(http: str) -> None:
    signal = Signal()
    SENT.clear()

    async def slow(exchange: Exchange) -> Answer:
        await signal.wait_async()
        return Answer(200, [], b"late")

    async def main() -> None:
        import ssl

        import aiohttp

        with MockGPU(tls=http == "2", http="auto" if http == "2" else "1.1") as gpu:
            gpu.route("/slow", slow)
            trust = ssl.create_default_context(cafile=gpu.ca_file) if gpu.ca_file else True
            async with netkit.ClientSession(plugins={"outliving": True, "http2": http == "2"}) as session:
                limits = aiohttp.ClientTimeout(total=0.05)
                with pytest.raises(TimeoutError):
                    async with session.post(f"{gpu.url}/slow", data=b"x", timeout=limits, ssl=trust):
                        pass
                event, outcome = SENT[0]
                while not event.is_set():
                    await asyncio.sleep(0)
                # The neutral request still says 0.05 s, so its own limit ends it: as a failure, not a cancellation.
                assert isinstance(outcome[0], netkit.TransportError)
            signal.set()

    asyncio.run(main())
