"""What goes wrong looks to the caller as it does without netkit: same type, same words, same cause."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from netkit.testing.conformance._bench import Bench
from netkit.testing.conformance._rule import rule
from netkit.testing.conformance._rules._signature import assert_same_failure
from netkit.testing.conformance._servers import closed_port
from netkit.testing.mock_gpu import Answer, Exchange, expected_bytes
from netkit.testing.mock_gpu.exchange import Gone

__all__ = ["RULES"]


async def _same_failure(bench: Bench, method: str, url: str, **options: Any) -> Exception:
    async def fail(session: Any) -> Exception:
        return await bench.failure(session, method, url, **options)

    plain, ours = await bench.both(fail)
    assert_same_failure(bench, plain, ours)
    assert _request_of(ours) == _request_of(plain), "the failure does not know its request any more"
    return ours


def _request_of(error: Any) -> str | None:
    try:
        request = error.request
    except (AttributeError, RuntimeError):
        return None
    return None if request is None else f"{request.method} {str(request.url).rstrip('/')}"


@rule()
async def a_refused_connection_is_native(bench: Bench) -> None:
    """Nobody listens: the stack's own error, and the session goes on to work with others."""
    port = closed_port()
    await _same_failure(bench, "POST", f"{bench.url.partition(':')[0]}://127.0.0.1:{port}/case/0", content=b"{}")


@rule()
async def a_reset_before_the_answer_is_native(bench: Bench) -> None:
    """The server resets after it read the request."""

    async def handler(exchange: Exchange) -> Answer:
        exchange.connection.reset()
        raise Gone("cut")

    await _same_failure(bench, "POST", bench.route(handler), content=b"{}")


@rule()
async def a_close_before_the_answer_is_native(bench: Bench) -> None:
    """The server closes after it read the request."""

    async def handler(exchange: Exchange) -> Answer:
        exchange.connection.close()
        raise Gone("cut")

    await _same_failure(bench, "POST", bench.route(handler), content=b"{}")


@rule(http=("1.1",))
async def a_malformed_answer_is_native(bench: Bench) -> None:
    """The server answers with something that is not HTTP."""

    async def handler(exchange: Exchange) -> Answer:
        exchange.connection.write_raw(b"\x00\x01 this is not HTTP\r\n\r\n")
        exchange.connection.close()
        raise Gone("cut")

    await _same_failure(bench, "POST", bench.route(handler), content=b"{}")


def _short(bench: Bench, how: str) -> str:
    def handler(exchange: Exchange) -> Answer:
        async def pieces() -> AsyncIterator[bytes]:
            yield expected_bytes(1000)
            getattr(exchange.connection, how)()
            raise Gone("cut")

        return Answer(200, [], pieces(), 5000)

    return bench.route(handler)


@rule()
async def a_short_body_is_native(bench: Bench) -> None:
    """The body ends before its length: the stack's own error, never a short answer."""
    await _same_failure(bench, "POST", _short(bench, "close"), content=b"{}")


@rule()
async def a_reset_in_the_body_is_native(bench: Bench) -> None:
    """The connection is reset in the middle of a body that the caller reads piece by piece."""
    url = _short(bench, "reset")

    async def read(session: Any) -> Exception:
        async with session.stream("POST", url, content=b"{}") as stream:
            try:
                while await stream.chunk():
                    pass
            except Exception as error:  # noqa: BLE001 - it is what was asked for
                return error
        raise AssertionError("a body that was cut short ended as if it were whole")

    plain, ours = await bench.both(read)
    assert_same_failure(bench, plain, ours)


@rule()
async def an_endless_redirect_is_native(bench: Bench) -> None:
    """Too many redirects: the stack's own error."""
    path = f"/case/{bench.servers.number()}"
    bench.gpu.route(path, lambda _: Answer(302, [("location", path)]))
    await _same_failure(bench, "GET", bench.url + path)


@rule()
async def a_wrong_url_is_native(bench: Bench) -> None:
    """What can never be sent is refused with the stack's own error."""
    for url in ("nothing://127.0.0.1/", "http://", "no-scheme"):
        await _same_failure(bench, "GET", url)


@rule()
async def a_failure_spoils_nothing(bench: Bench) -> None:
    """After each kind of failure the same session works."""

    async def dead(exchange: Exchange) -> Answer:
        exchange.connection.reset()
        raise Gone("cut")

    async with bench.session() as session:
        for url in (f"http://127.0.0.1:{closed_port()}/", bench.route(dead), _short(bench, "close")):
            await bench.failure(session, "POST", url, content=b"{}")
            assert (await session.request("GET", f"{bench.url}/bytes/5")).content == expected_bytes(5)


RULES = (
    a_refused_connection_is_native,
    a_reset_before_the_answer_is_native,
    a_close_before_the_answer_is_native,
    a_malformed_answer_is_native,
    a_short_body_is_native,
    a_reset_in_the_body_is_native,
    an_endless_redirect_is_native,
    a_wrong_url_is_native,
    a_failure_spoils_nothing,
)
