"""Faults of the answer: its status, its time, its content."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from netkit.testing.mock_gpu.exchange import Answer
from netkit.testing.mock_gpu.signals import Signal

from ._base import Fault, Proceed, respond
from ._outputs import Relay

if TYPE_CHECKING:
    from netkit.testing.mock_gpu.exchange import Exchange, HeaderList

__all__ = ["Data", "Edit", "Hold", "Latency", "Pass", "RateLimit", "Status", "statuses"]


@dataclass(frozen=True, kw_only=True)
class _Statused(Fault):
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    body: bytes | str | None = None
    read_body: bool = True

    def pairs(self) -> list[tuple[str, str]]:
        return list(self.headers.items() if isinstance(self.headers, Mapping) else self.headers)


@dataclass(frozen=True)
class Status(_Statused):
    """This status instead of the answer: `Status(503, headers={"retry-after": "1"})`.

    Attributes:
        headers: a mapping or pairs.
        body: None means an error in OpenAI's shape.
        read_body: answer only when the request is whole (else see EarlyResponse).
    """

    status: int = 503

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        if self.read_body:
            await exchange.body.wait()
        if self.body is None and self.status not in (204, 304):
            await respond(exchange, Answer.error(self.status, f"scripted status {self.status}", headers=self.pairs()))
        else:
            body = self.body.encode() if isinstance(self.body, str) else self.body or b""
            await respond(exchange, Answer(self.status, self.pairs(), body))


@dataclass(frozen=True, kw_only=True)
class Pass(Fault):
    """The server's own answer; no later fault meets this request."""

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        await exchange.connection.backend.answer(exchange)


def statuses(
    *codes: int, headers: Mapping[str, str] | Sequence[tuple[str, str]] = (), **conditions: Any
) -> list[Fault]:
    """One fault per request, in this order: `statuses(503, 503, 200)`; 200 stands for the server's own answer.

    `headers` go with each status but 200; `conditions` are those of every fault (path, method, when, connection).
    """
    return [Pass(**conditions) if code == 200 else Status(code, headers=headers, **conditions) for code in codes]


@dataclass(frozen=True, kw_only=True)
class Latency(Fault):
    """The answer comes later: by `seconds`, or drawn from `uniform` (low, high) or `lognormal` (median, sigma).

    Meets every request that fits (`times` None). Draws follow `seed`, in the order in which requests arrive.
    """

    seconds: float = 0.0
    uniform: tuple[float, float] | None = None
    lognormal: tuple[float, float] | None = None
    seed: int = 0
    times: int | None = None
    _random: random.Random = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_random", random.Random(self.seed))

    def draw(self) -> float:
        """The next delay in seconds."""
        if self.uniform is not None:
            return self.seconds + self._random.uniform(*self.uniform)
        if self.lognormal is not None:
            median, sigma = self.lognormal
            return self.seconds + median * self._random.lognormvariate(0.0, sigma)
        return self.seconds

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        await asyncio.sleep(self.draw())
        await proceed()


class _HeldAfterHead(Relay):
    def __init__(self, hold: Hold, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._hold = hold

    async def head(self, status: int, headers: HeaderList) -> None:
        await super().head(status, headers)
        await self._hold._pause(self.exchange)


@dataclass(frozen=True, kw_only=True, eq=False)
class Hold(Fault):
    """Keep answers back until the test says so; no test needs to sleep.

    Example::

        gate = faults.Hold(times=2)
        gpu.faults.push(gate)
        ...                        # start two calls
        gate.wait_for(2)           # both have arrived, whole
        gate.release()

    Attributes:
        at: "request" holds before the head; "head" sends the head and holds the body.
        read_body: wait for the whole request before saying that it arrived.
    """

    at: Literal["request", "head"] = "request"
    read_body: bool = True
    arrived: Signal = field(init=False, default_factory=Signal)
    """Set when the first request is held."""
    released: Signal = field(init=False, default_factory=Signal)
    _held: list[Exchange] = field(init=False, default_factory=list, repr=False)
    _tickets: list[Signal] = field(init=False, default_factory=list, repr=False)
    _counts: dict[int, Signal] = field(init=False, default_factory=dict, repr=False)

    @property
    def held(self) -> int:
        """How many requests have arrived here so far."""
        return len(self._held)

    def wait_for(self, count: int, timeout: float | None = 10.0) -> None:
        """Block this thread until `count` requests have arrived. Raises TimeoutError."""
        self._count(count).wait(timeout)

    async def wait_for_async(self, count: int, timeout: float | None = 10.0) -> None:
        """The same for a task."""
        await self._count(count).wait_async(timeout)

    def release(self) -> None:
        """Let all go: those held and those to come. From any thread."""
        self.released.set()
        for ticket in tuple(self._tickets):
            ticket.set()

    def release_one(self, index: int = 0) -> None:
        """Let one go, by the order of arrival; IndexError where none has arrived there."""
        self._tickets[index].set()

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        if self.read_body:
            exchange.body.put_back(await exchange.body.read())
        if self.at == "head":
            exchange.output = _HeldAfterHead(self, exchange)
        else:
            await self._pause(exchange)
        await proceed()

    async def _pause(self, exchange: Exchange) -> None:
        ticket = Signal()
        self._tickets.append(ticket)
        self._held.append(exchange)
        if self.released.is_set():
            ticket.set()
        self.arrived.set()
        for count, signal in tuple(self._counts.items()):
            if len(self._held) >= count:
                signal.set()
        await ticket.wait_async(None)

    def _count(self, count: int) -> Signal:
        signal = self._counts.setdefault(count, Signal())
        if len(self._held) >= count:
            signal.set()
        return signal


@dataclass(frozen=True, kw_only=True)
class Edit(Fault):
    """The server's answer, changed by a function: `Edit(change=lambda answer: replace(answer, status=500))`.

    `change` gets an Answer and gives one back; it is called in the server's loop.
    """

    change: Callable[[Answer], Answer]

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        answer = await exchange.connection.backend.application.answer(exchange)
        await respond(exchange, self.change(answer))


@dataclass(frozen=True, kw_only=True)
class Data(Fault):
    """An embedding answer that is not what was asked for: changes `data` (or TEI's bare list) of a 200.

    Attributes:
        order: "reversed", or "shuffled" by `seed`; `index` stays with its vector.
        drop: positions left out.
        duplicate: positions given twice, with the same index.
        extra: how many more vectors come, with indices past the end.
        without_index: leave `index` out.
    """

    order: Literal["index", "reversed", "shuffled"] = "index"
    drop: tuple[int, ...] = ()
    duplicate: tuple[int, ...] = ()
    extra: int = 0
    without_index: bool = False
    seed: int = 0

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        answer = await exchange.connection.backend.application.answer(exchange)
        if answer.status == 200 and isinstance(answer.body, bytes):
            payload = msgspec.json.decode(answer.body)
            if isinstance(payload, list):
                payload = self._changed(payload)
            else:
                payload["data"] = self._changed(payload["data"])
            answer = replace(answer, body=msgspec.json.encode(payload))
        await respond(exchange, answer)

    def _changed(self, data: list[Any]) -> list[Any]:
        result = [item for index, item in enumerate(data) if index not in self.drop]
        result += [data[index] for index in self.duplicate]
        for number in range(self.extra):
            item = data[0]
            result.append({**item, "index": len(data) + number} if isinstance(item, dict) else item)
        if self.order == "reversed":
            result.reverse()
        elif self.order == "shuffled":
            random.Random(self.seed).shuffle(result)
        if self.without_index:
            result = [{k: v for k, v in item.items() if k != "index"} for item in result]
        return result


@dataclass(frozen=True, kw_only=True)
class RateLimit(Fault):
    """`allowed` answers, then `status` with Retry-After for `seconds`, counted from the first refusal; then anew.

    Meets every request that fits (`times` None).
    """

    allowed: int
    seconds: float = 1.0
    status: int = 429
    retry_after: str | None = None
    """Value of the header; None means the time left, rounded up."""
    times: int | None = None
    _state: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        now = time.monotonic()
        until = self._state.get("until")
        if until is not None and now >= until:
            self._state.clear()
            until = None
        if until is None and self._state.get("used", 0) < self.allowed:
            self._state["used"] = self._state.get("used", 0) + 1
            await proceed()
            return
        left = self._state.setdefault("until", now + self.seconds) - now
        await exchange.body.wait()
        wait = self.retry_after if self.retry_after is not None else str(max(1, math.ceil(left - 0.001)))
        message = "Rate limit reached"
        headers = [("retry-after", wait)]
        await respond(exchange, Answer.error(self.status, message, kind="rate_limit_error", headers=headers))
