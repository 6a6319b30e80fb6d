"""What a call says about itself is obeyed: timeout, trust, client certificate, proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator

from netkit.testing.conformance._bench import Bench
from netkit.testing.conformance._rule import rule
from netkit.testing.conformance._rules._signature import assert_same_failure
from netkit.testing.mock_gpu import Answer, Exchange, Signal

__all__ = ["RULES"]

_SHORT = 0.05
"""Seconds; how long a call waits for a server that does not answer."""
_LONGER = (_SHORT, 0.3, 2.0, 8.0)
"""Seconds, one after the other: a machine that is busy may need a while for the first event."""


@rule()
async def a_timeout_of_one_call_is_obeyed(bench: Bench) -> None:
    """A call's own timeout ends it with the stack's own error, and binds no other call."""
    signal = Signal()

    async def silent(_: Exchange) -> Answer:
        await signal.wait_async()
        return Answer.text("at last")

    url = bench.route(silent)
    async with bench.native() as session:
        plain = await bench.failure(session, "POST", url, content=b"{}", timeout=_SHORT)
    async with bench.session() as session:
        ours = await bench.failure(session, "POST", url, content=b"{}", timeout=_SHORT)
        assert_same_failure(bench, plain, ours, words=False)
        signal.set()
        assert (await session.request("POST", url, content=b"{}")).content == b"at last"


@rule()
async def a_timeout_between_chunks_is_obeyed(bench: Bench) -> None:
    """A stream that falls silent ends with the stack's own error."""
    signal = Signal()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"data: first\n\n"
        await signal.wait_async()

    url = bench.route(lambda _: Answer(200, [], pieces()))

    async def read(native: bool) -> Exception:
        async with (bench.native if native else bench.session)() as session:
            for timeout in _LONGER:
                begun = False
                try:
                    async with session.stream("GET", url, timeout=timeout) as stream:
                        assert await stream.event() == b"data: first"
                        begun = True
                        rest = await stream.event()
                except AssertionError:
                    raise
                except Exception as error:  # noqa: BLE001 - it is what was asked for
                    if begun or timeout == _LONGER[-1]:
                        return error
                else:
                    raise AssertionError(f"the stream was to fail, but went on with {rest!r}")
        raise AssertionError

    plain, ours = await read(True), await read(False)
    signal.set()
    assert_same_failure(bench, plain, ours, words=False)


@rule()
async def verification_is_obeyed(bench: Bench) -> None:
    """An unknown authority is refused with the stack's own error, a given one is trusted, False trusts all; what
    one call was told never serves another."""
    gpu = bench.secure
    url = bench.route(lambda _: Answer.text("ok"), gpu=gpu)
    assert gpu.ca_file is not None
    async with bench.native(verify=True) as session:
        plain = await bench.failure(session, "GET", url)
    async with bench.session(verify=True) as session:
        assert (await bench.call(session, "GET", url, verify=False)).status == 200
        ours = await bench.failure(session, "GET", url)
        assert (await bench.call(session, "GET", url, verify=gpu.ca_file)).status == 200
        again = await bench.failure(session, "GET", url)
    for error in (ours, again):
        assert_same_failure(bench, plain, error, words=False)


@rule()
async def a_client_certificate_is_sent(bench: Bench) -> None:
    """The certificate reaches the server when it is given, and only then."""
    gpu = bench.secure
    url = bench.route(lambda _: Answer.text("ok"), gpu=gpu)
    assert gpu.ca_file is not None
    assert gpu.client_file is not None
    async with bench.session(verify=gpu.ca_file) as session:
        await session.request("GET", url)
        await bench.call(session, "GET", url, cert=gpu.client_file, verify=gpu.ca_file)
    used = [record.connection for record in bench.seen(url, gpu=gpu)]
    shown = {record.id: record.client_certificate for record in gpu.log.connections}
    assert [shown[connection] for connection in used] == [False, True]


@rule()
async def a_proxy_is_used(bench: Bench) -> None:
    """http passes the proxy in absolute form, https through a tunnel, and a call without proxy passes none."""
    proxy = bench.servers.proxy
    secure = bench.secure
    assert secure.ca_file is not None
    plain_url = bench.route(lambda _: Answer.text("forwarded"), gpu=bench.servers.get("1.1", tls=False))
    secure_url = bench.route(lambda _: Answer.text("tunnelled"), gpu=secure)
    before = len(proxy.seen)
    async with bench.session(verify=secure.ca_file) as session:
        assert (await session.request("GET", plain_url)).content == b"forwarded"
        assert proxy.seen[before:] == []
        got = await bench.call(session, "GET", plain_url, proxy=proxy.url)
        assert got.content == b"forwarded"
        assert proxy.seen[before:] == [f"GET {plain_url}"]
        got = await bench.call(session, "GET", secure_url, proxy=proxy.url, verify=secure.ca_file)
        assert got.content == b"tunnelled"
        # HTTP/2 may look first what the origin speaks, through a tunnel of its own.
        assert set(proxy.seen[before + 1 :]) == {f"CONNECT 127.0.0.1:{secure.port}"}


RULES = (
    a_timeout_of_one_call_is_obeyed,
    a_timeout_between_chunks_is_obeyed,
    verification_is_obeyed,
    a_client_certificate_is_sent,
    a_proxy_is_used,
)
