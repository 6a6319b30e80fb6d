"""Failures: native types, causes kept, and the verdict that layers see."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import socket
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from netkit_adapters.aiohttp import errors as native_errors
from netkit_adapters.aiohttp.errors import to_native

import netkit
from netkit import Request, Response, Send, Verdict, errors
from netkit.errors import FailureKind, TransportError
from netkit.testing import MockGPU, faults

OpenSession = Callable[..., netkit.ClientSession]


class Noting:
    """A layer that keeps what it saw fail."""

    def __init__(self) -> None:
        self.failures: list[TransportError] = []

    async def __call__(self, request: Request, send: Send) -> Response:
        try:
            return await send(request)
        except TransportError as failure:
            self.failures.append(failure)
            raise


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def failing(session: aiohttp.ClientSession, url: str, **arguments: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        async with session.post(url, **arguments) as answer:
            await answer.read()
    return caught.value


CASES: dict[str, tuple[Any, dict[str, Any], type[Exception], FailureKind, Verdict]] = {
    "reset before the answer": (
        faults.ResetBeforeHeaders(),
        {},
        aiohttp.ClientOSError,
        FailureKind.RESET,
        Verdict.AMBIGUOUS,
    ),
    "closed before the answer": (
        faults.CloseBeforeHeaders(),
        {},
        aiohttp.ServerDisconnectedError,
        FailureKind.DISCONNECTED,
        Verdict.AMBIGUOUS,
    ),
    "read timeout": (
        faults.BlackHole(),
        {"timeout": aiohttp.ClientTimeout(sock_read=0.05)},
        aiohttp.SocketTimeoutError,
        FailureKind.READ_TIMEOUT,
        Verdict.AMBIGUOUS,
    ),
    "total timeout": (
        faults.BlackHole(),
        {"timeout": aiohttp.ClientTimeout(total=0.05)},
        asyncio.TimeoutError,
        FailureKind.DEADLINE,
        Verdict.AMBIGUOUS,
    ),
    "garbage": (
        faults.Malformed(),
        {},
        aiohttp.ClientResponseError,
        FailureKind.PROTOCOL,
        Verdict.AMBIGUOUS,
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_failures_on_the_wire(gpu: MockGPU, http: str, open_session: OpenSession, name: str) -> None:
    if name == "garbage" and http == "2":
        pytest.skip("what is malformed on HTTP/1.1 has no equal on HTTP/2")
    fault, arguments, expected, kind, verdict = CASES[name]
    noting = Noting()
    gpu.script(fault)
    error = await failing(open_session(noting), f"{gpu.url}/echo", data=b"x", **arguments)
    gpu.script(fault)
    async with aiohttp.ClientSession() as plain:
        as_plain = await failing(plain, f"{gpu.url}/echo", data=b"x", **arguments)
    if http == "2" and name == "closed before the answer" and isinstance(error, aiohttp.ClientOSError):
        # A server that closes while frames of ours are on their way to it answers those with a reset.
        return
    assert type(error) is type(as_plain)
    assert isinstance(error, expected)
    assert type(error.__cause__) is type(as_plain.__cause__)
    assert not isinstance(error.__context__, TransportError)
    (failure,) = noting.failures
    assert (failure.kind, failure.verdict, failure.native) == (kind, verdict, error)


async def test_failures_before_anything_was_sent(
    tls_gpu: MockGPU, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unresolved(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unresolved)
    port, wrong = closed_port(), aiohttp.Fingerprint(b"0" * 32)
    for url, arguments, expected, kind in (
        ("http://nowhere.invalid/", {}, aiohttp.ClientConnectorDNSError, FailureKind.DNS),
        (f"http://127.0.0.1:{port}/", {}, aiohttp.ClientConnectorError, FailureKind.CONNECT),
        (tls_gpu.url, {}, aiohttp.ClientConnectorCertificateError, FailureKind.CERTIFICATE),
        (
            tls_gpu.url,
            {"ssl": wrong},
            aiohttp.ServerFingerprintMismatch,
            FailureKind.CERTIFICATE,
        ),
        (tls_gpu.url, {"proxy": f"http://127.0.0.1:{port}"}, aiohttp.ClientProxyConnectionError, FailureKind.PROXY),
    ):
        noting = Noting()
        error = await failing(open_session(noting), url, **arguments)
        async with aiohttp.ClientSession() as plain:
            as_plain = await failing(plain, url, **arguments)
        assert type(error) is type(as_plain) is expected
        assert type(error.__cause__) is type(as_plain.__cause__)
        (failure,) = noting.failures
        assert (failure.kind, failure.verdict) == (kind, Verdict.NOT_SENT)
    assert tls_gpu.log.requests == []


async def test_connect_timeout(open_session: OpenSession) -> None:
    with socket.socket() as full:
        # A listener whose queue is full leaves connects unanswered.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.socket() as first, socket.socket() as second:
            for each in (first, second):
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            noting = Noting()
            error = await failing(
                open_session(noting),
                f"http://127.0.0.1:{full.getsockname()[1]}/",
                timeout=aiohttp.ClientTimeout(sock_connect=0.05),
            )
    assert type(error) is aiohttp.ConnectionTimeoutError
    assert (noting.failures[0].kind, noting.failures[0].verdict) == (FailureKind.CONNECT_TIMEOUT, Verdict.NOT_SENT)


async def test_what_is_no_failure_of_the_exchange_leaves_as_it_is(gpu: MockGPU, open_session: OpenSession) -> None:
    noting = Noting()
    session = open_session(noting)
    assert type(await failing(session, "http:///")) is aiohttp.InvalidUrlClientError
    assert type(await failing(session, "ftp://host/")) is aiohttp.NonHttpUrlClientError
    assert type(await failing(session, f"{gpu.url}/echo", headers={"X": "a\r\nb"})) is ValueError
    assert noting.failures == []
    assert netkit.stats(session).requests.in_flight == 0
    assert gpu.log.requests == []


async def test_a_broken_upload_keeps_its_cause(gpu: MockGPU, open_session: OpenSession) -> None:
    async def broken() -> Any:
        yield b"x"
        raise LookupError("mine")

    noting = Noting()
    error = await failing(open_session(noting), f"{gpu.url}/upload", data=broken())
    assert type(error) is aiohttp.ClientConnectionError
    assert isinstance(error.__cause__, LookupError)
    assert noting.failures[0].kind is FailureKind.WRITE


DECISIONS: list[tuple[TransportError | errors.NetkitError, tuple[type[BaseException], ...]]] = [
    (errors.PoolTimeout("full"), (netkit.PoolTimeout, aiohttp.ConnectionTimeoutError, asyncio.TimeoutError)),
    (errors.QueueFull("very full"), (netkit.QueueFull, netkit.PoolTimeout, aiohttp.ConnectionTimeoutError)),
    (errors.CircuitOpen("open", retry_after=3.0), (netkit.CircuitOpen, aiohttp.ClientConnectionError)),
    (errors.DeadlineExceeded("late"), (netkit.DeadlineExceeded, aiohttp.ServerTimeoutError, asyncio.TimeoutError)),
    (errors.BatchError("split"), (netkit.BatchError, aiohttp.ClientError)),
    (errors.ImageError("broken"), (netkit.ImageError, aiohttp.ClientError, ValueError)),
    (TransportError("h2", kind=FailureKind.RESET), (aiohttp.ClientConnectionResetError,)),
    (TransportError("h2", kind=FailureKind.OTHER), (aiohttp.ClientConnectionError,)),
]


@pytest.mark.parametrize(("decision", "types"), DECISIONS, ids=lambda value: type(value).__name__)
async def test_decisions_of_netkit_are_native_too(
    gpu: MockGPU, open_session: OpenSession, decision: Any, types: tuple[type[BaseException], ...]
) -> None:
    cause = OSError("deep down")

    async def deciding(request: Request, send: Send) -> Response:
        raise decision from cause

    session = open_session(deciding)
    error = await failing(session, f"{gpu.url}/echo")
    for each in types:
        assert isinstance(error, each)
    assert str(error) == str(decision)
    assert cause in (error.__cause__, getattr(error.__cause__, "__cause__", None))
    if isinstance(decision, TransportError) and type(decision) is not TransportError:
        assert (error.kind, error.verdict) == (decision.kind, decision.verdict)  # type: ignore[attr-defined]
        if isinstance(decision, errors.CircuitOpen):
            assert error.retry_after == 3.0  # type: ignore[attr-defined]
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), copied.verdict) == (type(error), str(error), error.verdict)  # type: ignore[attr-defined]
    assert netkit.stats(session).requests.errors == 1


async def test_plugin_errors_and_cancellation_pass_untouched(gpu: MockGPU, open_session: OpenSession) -> None:
    for raised in (
        netkit.PluginError("mine"),
        netkit.ConfigError("mine"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
    ):

        async def raising(request: Request, send: Send, raised: BaseException = raised) -> Response:
            raise raised

        session = open_session(raising)
        with pytest.raises(type(raised)) as caught:
            await session._request("GET", f"{gpu.url}/echo")
        assert caught.value is raised
        assert netkit.stats(session).requests.in_flight == 0


def collected() -> list[str]:
    """Types of netkit's objects that only a collection can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        modules = ("netkit.messages", "netkit.errors", "netkit.stats", "netkit_adapters.aiohttp.")
        return [type(each).__name__ for each in gc.garbage if type(each).__module__.startswith(modules)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("outcome", ["answer", "unread", "reset", "disconnected", "refused by a layer"])
async def test_no_cycle_is_left_behind(gpu: MockGPU, open_session: OpenSession, outcome: str) -> None:
    async def refusing(request: Request, send: Send) -> Response:
        raise errors.CircuitOpen("open")

    session = open_session(refusing if outcome == "refused by a layer" else Noting.__call__.__get__(Noting()))

    async def call() -> None:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.post(f"{gpu.url}/echo", data=b"x") as answer:
                if outcome == "answer":
                    await answer.read()

    await call()
    # What earlier tests left behind goes first.
    while gc.collect():
        await asyncio.sleep(0)
    gc.disable()
    try:
        if outcome in ("reset", "disconnected"):
            gpu.script(faults.CloseBeforeHeaders(how="reset" if outcome == "reset" else "fin", times=None))
        for _ in range(3):
            await call()
        await asyncio.sleep(0)
        assert collected() == []
    finally:
        gc.enable()


def test_every_decision_has_a_face() -> None:
    for name in ("PoolTimeout", "QueueFull", "CircuitOpen", "DeadlineExceeded", "BatchError", "ImageError"):
        made = to_native(getattr(errors, name)("x"))
        assert type(made) is getattr(native_errors, name)


async def test_tls_verification_is_per_connection(
    tls_gpu: MockGPU, open_session: OpenSession, context: ssl.SSLContext
) -> None:
    session = open_session(plugins={"retry": True})
    async with session.get(f"{tls_gpu.url}/echo", ssl=False) as answer:
        await answer.read()
    error = await failing(session, f"{tls_gpu.url}/echo")
    assert type(error) is aiohttp.ClientConnectorCertificateError
    async with session.get(f"{tls_gpu.url}/echo", ssl=context) as answer:
        await answer.read()
    assert [record.path for record in tls_gpu.log.requests] == ["/echo", "/echo"]
    assert len({record.connection for record in tls_gpu.log.requests}) == 2
    assert len(tls_gpu.log.connections) == 3
