"""The frame of all faults: which requests one meets, and the script that hands requests to faults.

A fault is a frozen value. It meets the requests (or connections) that fit all of its conditions, from the `nth` of
them on, `times` times; then it is used up. The script asks its faults in order; a fault may answer itself, or do
something before and after `await proceed()`, which goes on to the next fault that fits and at last to the answer.

Example of one of your own::

    @dataclass(frozen=True, kw_only=True)
    class Teapot(Fault):
        async def run(self, exchange, proceed):
            await respond(exchange, Answer.text("short and stout", 418))
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from netkit.testing.mock_gpu.connection import Connection
    from netkit.testing.mock_gpu.exchange import Answer, Exchange

__all__ = ["ConnectionFault", "Fault", "FaultScript", "Faults", "Proceed", "respond"]

Proceed = Callable[[], Awaitable[None]]
Faults = Union["Fault", "ConnectionFault", Iterable["Faults"]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that happens to a request.

    Attributes:
        path: glob on the path (`/v1/*`); None fits all.
        method: exact; None fits all.
        when: a further condition on the exchange, called in the server's loop.
        connection: id of the connection (1 is the first accepted); None fits all.
        request: the request's number on its connection (1 is the first); None fits all.
        nth: 1 starts with the first request that fits, 2 with the second, and so on.
        times: how many requests it meets before it is used up; None means always.
    """

    path: str | None = None
    method: str | None = None
    when: Callable[[Exchange], object] | None = None
    connection: int | None = None
    request: int | None = None
    nth: int = 1
    times: int | None = 1

    def fits(self, exchange: Exchange) -> bool:
        """True where every condition but `nth` and `times` holds."""
        return (
            (self.method is None or self.method == exchange.method)
            and (self.path is None or fnmatchcase(exchange.path, self.path))
            and (self.connection is None or self.connection == exchange.connection.id)
            and (self.request is None or self.request == exchange.number)
            and (self.when is None or bool(self.when(exchange)))
        )

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        """Do it. The head has arrived, the body perhaps not: `await exchange.body.wait()` reads it."""
        raise NotImplementedError(f"{type(self).__name__} does not say what happens to a request")


@dataclass(frozen=True, kw_only=True)
class ConnectionFault:
    """Something that happens to a connection from its acceptance on.

    Attributes:
        connection: id of the connection; None fits all.
        nth: starts with the n-th connection that fits (counted from the push of the fault).
        times: how many connections it meets; None means always.
    """

    connection: int | None = None
    nth: int = 1
    times: int | None = 1

    def fits(self, connection: Connection) -> bool:
        return self.connection is None or self.connection == connection.id

    def start(self, connection: Connection) -> None:
        """Do it; nothing was read from the connection yet."""
        raise NotImplementedError(f"{type(self).__name__} does not say what happens to a connection")


class _Entry:
    """A fault and how often it has been met."""

    __slots__ = ("fault", "fired", "seen")

    def __init__(self, fault: Fault | ConnectionFault) -> None:
        self.fault = fault
        self.seen = 0
        self.fired = 0

    def count(self) -> bool:
        """One more that fits: True if the fault meets it."""
        self.seen += 1
        if self.seen < self.fault.nth or self.is_used_up:
            return False
        self.fired += 1
        return True

    @property
    def is_used_up(self) -> bool:
        return self.fault.times is not None and self.fired >= self.fault.times


class FaultScript:
    """The faults of one server, in order. `push`, `remove`, `clear` may be called from any thread at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: tuple[_Entry, ...] = ()
        self._fired: dict[int, tuple[Fault | ConnectionFault, int]] = {}

    def __repr__(self) -> str:
        return f"<FaultScript {[type(entry.fault).__name__ for entry in self._entries]}>"

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_active(self) -> bool:
        """True while any fault is not used up."""
        return bool(self._entries)

    def push(self, *faults: Faults) -> None:
        """Add faults (or lists of them) at the end."""
        entries = tuple(_Entry(fault) for fault in _flat(faults))
        with self._lock:
            self._entries += entries

    def remove(self, fault: Fault | ConnectionFault) -> None:
        """Take one fault away, used up or not; nothing happens where it is not in the script."""
        with self._lock:
            self._entries = tuple(entry for entry in self._entries if entry.fault is not fault)

    def clear(self) -> None:
        """Take all faults away. What a fault has begun goes on."""
        with self._lock:
            self._entries = ()

    def fired(self, fault: Fault | ConnectionFault) -> int:
        """How many requests or connections this fault has met."""
        with self._lock:
            return self._fired[id(fault)][1] if id(fault) in self._fired else 0

    def on_connection(self, connection: Connection) -> None:
        """Called by the server for each accepted connection."""
        for entry in self._entries:
            if isinstance(entry.fault, ConnectionFault) and entry.fault.fits(connection) and self._claim(entry):
                connection.note("fault", {"name": type(entry.fault).__name__})
                entry.fault.start(connection)

    async def run(self, exchange: Exchange, answer: Proceed) -> None:
        """Called by the server for each request."""
        await self._step(self._entries, exchange, answer)

    async def _step(self, entries: tuple[_Entry, ...], exchange: Exchange, answer: Proceed) -> None:
        for position, entry in enumerate(entries):
            if isinstance(entry.fault, Fault) and entry.fault.fits(exchange) and self._claim(entry):
                name = type(entry.fault).__name__
                exchange.connection.note("fault", {"name": name, "request": exchange.id, "stream": exchange.stream})
                rest = entries[position + 1 :]
                await entry.fault.run(exchange, lambda rest=rest: self._step(rest, exchange, answer))  # type: ignore[misc]
                return
        await answer()

    def _claim(self, entry: _Entry) -> bool:
        with self._lock:
            claimed = entry.count()
            if claimed:
                _, before = self._fired.get(id(entry.fault), (entry.fault, 0))
                self._fired[id(entry.fault)] = (entry.fault, before + 1)
            if entry.is_used_up:
                self._entries = tuple(other for other in self._entries if other is not entry)
        return claimed


async def respond(exchange: Exchange, answer: Answer) -> None:
    """Send an answer instead of the server's own."""
    await exchange.connection.backend.deliver(exchange, answer)


def _flat(faults: Iterable[Faults]) -> Iterable[Fault | ConnectionFault]:
    for fault in faults:
        if isinstance(fault, (Fault, ConnectionFault)):
            yield fault
        elif isinstance(fault, Iterable) and not isinstance(fault, (str, bytes)):
            yield from _flat(fault)
        else:
            raise TypeError(f"a fault is expected, not {fault!r}")
