"""Bodies on their way: no event waits, nothing piles up, and who leaves is seen to leave."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable

from netkit.testing.conformance._bench import Bench
from netkit.testing.conformance._rule import rule
from netkit.testing.conformance._session import Session
from netkit.testing.mock_gpu import Answer, Exchange, Log, Signal, expected_bytes

__all__ = ["RULES"]

_MEGABYTE = 1024 * 1024
_STREAMED = {"1.1": 16 * _MEGABYTE, "2": 26 * _MEGABYTE}
_MAY_GROW = {"1.1": 5 * _MEGABYTE, "2": 20 * _MEGABYTE}
"""Buffers of the stack, the server and two sockets, and on HTTP/2 a window at both ends; a layer that keeps the body
passes this at once."""


def _held(signals: list[Signal]) -> Callable[[Exchange], Answer]:
    """A stream whose event n+1 is sent only when the reader of event n says so."""

    async def events() -> AsyncIterator[bytes]:
        yield b"data: first\n\n"
        for number, signal in enumerate(signals):
            await signal.wait_async()
            yield b"data: %d\n\n" % number

    return lambda _: Answer(200, [("content-type", "text/event-stream")], events())


@rule()
async def the_first_event_is_not_delayed(bench: Bench) -> None:
    """Each event reaches the caller before the server sends the next one."""
    signals = [Signal(), Signal()]
    url = bench.route(_held(signals))
    async with bench.session() as session, session.stream("POST", url, content=b"{}", timeout=5) as stream:
        assert stream.status == 200
        assert await stream.event() == b"data: first"
        for number, signal in enumerate(signals):
            signal.set()
            assert await stream.event() == b"data: %d" % number
        assert await stream.event() == b""


@rule()
async def events_pass_byte_exact(bench: Bench) -> None:
    """A stream of server-sent events is, all together, what the server sent, heartbeats and compression included."""

    async def read(session: Session, query: str) -> bytes:
        pieces = []
        async with session.stream("GET", f"{url}{query}") as stream:
            while piece := await stream.chunk():
                pieces.append(piece)
        return b"".join(pieces)

    sent = b"".join(b"data: %d\n\n: heartbeat\n\n" % number for number in range(50))

    async def events() -> AsyncIterator[bytes]:
        for start in range(0, len(sent), 7):
            yield sent[start : start + 7]

    url = bench.route(lambda _: Answer(200, [("content-type", "text/event-stream")], events()))
    zipped = f"{bench.url}/stream/20?gzip=1"
    async with bench.session() as session:
        assert await read(session, "") == sent
        url = zipped
        got = await read(session, "")
        assert got.count(b"data: ") == 21
        assert got.endswith(b"data: [DONE]\n\n")


@rule()
async def memory_per_stream_is_constant(bench: Bench) -> None:
    """Reading a long stream holds a few buffers of it, never the stream."""
    whole, size = _STREAMED[bench.http], 0
    async with bench.session() as session:
        await session.request("GET", f"{bench.url}/bytes/5")
        gc.collect()
        tracemalloc.start()
        try:
            start = tracemalloc.get_traced_memory()[0]
            async with session.stream("GET", f"{bench.url}/bytes/{whole}?chunked=1") as stream:
                while piece := await stream.chunk():
                    size += len(piece)
            peak = tracemalloc.get_traced_memory()[1] - start
        finally:
            tracemalloc.stop()
    assert size == whole
    assert peak < _MAY_GROW[bench.http], f"{peak} bytes were held while {size} were streamed"


@rule()
async def a_stream_read_to_its_end_frees_its_connection(bench: Bench) -> None:
    """Reading to the end is enough: the next call uses the connection again, without a close."""
    url = f"{bench.url}/stream/3"
    async with bench.session() as session:
        streams = []
        for _ in range(3):
            stream = await session.open_stream("GET", url)
            while await stream.chunk():
                pass
            streams.append(stream)
        got = await session.request("GET", f"{bench.url}/echo")
        for stream in streams:
            await stream.close()
    used = {record.connection for record in bench.seen(url)} | {got.json()["connection"]}
    assert len(used) == 1, f"{len(used)} connections were used for calls one after another"


def _left(bench: Bench, url: str) -> Callable[[Log], object]:
    return lambda _: [r.outcome for r in bench.seen(url)] in (["client_left"], ["client_reset"])


@rule()
async def leaving_early_reaches_the_server(bench: Bench) -> None:
    """A caller who leaves a stream stops the work behind it; the session stays usable."""
    url = bench.route(lambda _: Answer(200, [("content-type", "text/event-stream")], _endless()))
    async with bench.session() as session:
        async with session.stream("GET", url) as stream:
            assert await stream.event() == b"data: again"
        await bench.until(_left(bench, url))
        assert (await session.request("GET", f"{bench.url}/bytes/5")).content == expected_bytes(5)


@rule(only="async")
async def a_cancelled_reader_reaches_the_server(bench: Bench) -> None:
    """Cancelling the task that reads a stream stops the work behind it; the session stays usable."""
    url = bench.route(_held([Signal()]))
    async with bench.session() as session:
        reading = asyncio.Event()

        async def read() -> None:
            async with session.stream("GET", url) as stream:
                await stream.event()
                reading.set()
                await stream.event()

        task = asyncio.create_task(read())
        async with asyncio.timeout(10):
            await reading.wait()
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled(), "the cancellation of a reading task was swallowed"
        await bench.until(_left(bench, url))
        assert (await session.request("GET", f"{bench.url}/bytes/5")).content == expected_bytes(5)


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield b"data: again\n\n"
        await asyncio.sleep(0.002)


RULES = (
    the_first_event_is_not_delayed,
    events_pass_byte_exact,
    memory_per_stream_is_constant,
    a_stream_read_to_its_end_frees_its_connection,
    leaving_early_reaches_the_server,
    a_cancelled_reader_reaches_the_server,
)
