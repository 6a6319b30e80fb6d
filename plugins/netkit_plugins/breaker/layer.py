"""The breaker layer: asks a circuit before a call and tells it afterwards.

Rules of this file:

- Nothing is held between the two but a permit, and every way out settles it.
- A failure is told when it is known: a status at the head, a body at its end.
- Redis is asked off the loop. A call waits for it when its copy is old, when it would be a probe and when it has
  failed; what ends with a body is told in the background.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Mapping
from typing import Final

from pybreaker import STATE_CLOSED, STATE_OPEN

from netkit import Request, Response, Send, fork
from netkit.blame import judge_end, judge_error
from netkit.errors import CircuitOpen, TransportError
from netkit.events import CircuitClosed, CircuitHalfOpen, CircuitOpened
from netkit.plugins import Context
from netkit.shared import SharedRedis
from netkit.urls import split_url
from netkit_plugins.breaker.circuit import Change, Circuit, CircuitStats, Permit, Snapshot
from netkit_plugins.breaker.options import BreakerOptions
from netkit_plugins.breaker.shared import SharedSteps

__all__ = ["BreakerLayer"]

MAX_CIRCUITS: Final = 1024
MAX_URLS: Final = 4096
TALKING: Final = 1.0
"""Seconds after its head at which a probe whose body still comes has proved enough."""

FRESH: Final = 1.0
"""Seconds for which a copy of a circuit in Redis is good enough while all is well. With failures in a row it never
is: the next may be another process's."""

MAX_WAITING: Final = 1000
SPREAD: Final = 0.25
"""Seconds over which callers who waited for a circuit go on once it has closed."""

DENIED: Final = 0.1
"""Seconds for which Redis is not asked for a probe again after it refused one."""


class BreakerLayer:
    """One per session and set of options."""

    stats_section = "breakers"

    def __init__(self, options: BreakerOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._now = context.runtime.now
        self._statuses = options.statuses()
        self._circuits: dict[str, Circuit] = {}
        self._by_url: dict[str, Circuit] = {}
        self._lock = threading.Lock()
        self._redis = None if options.storage == "memory" else SharedRedis(options.storage)
        self._steps = SharedSteps(options, uuid.uuid4().hex)
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """The parent's probes are not this process's; and another of its threads may have held a lock."""
        self._lock = threading.Lock()
        for circuit in self._circuits.values():
            circuit.renew_lock()
        self._circuits, self._by_url = {}, {}
        self._steps = SharedSteps(self._options, uuid.uuid4().hex)

    async def __call__(self, request: Request, send: Send) -> Response:
        circuit = None if "endpoint" in request.extensions else self._by_url.get(request.url)
        if circuit is None:
            circuit = self._find(request)
        now = self._now()
        permit = circuit.admit(now) if self._redis is None else await self._admit_shared(circuit, now)
        if permit is None and self._options.wait:
            permit = await self._wait(circuit, now + self._options.wait)
        if permit is None:
            raise self._refusal(circuit, self._now())
        if permit.is_probe:
            self._tell_half_open(circuit)
        try:
            response = await send(request)
        except TransportError as error:
            if judge_error(error):
                await self._failed(circuit, permit)
            else:
                self._released(circuit, permit)
            raise
        except BaseException:
            self._released(circuit, permit)
            raise
        if response.status in self._statuses:
            await self._failed(circuit, permit)
        else:
            _Watch(self, circuit, permit).follow(response)
        return response

    # Which circuit

    def _find(self, request: Request) -> Circuit:
        endpoint = request.extensions.get("endpoint")
        if self._options.scope == "endpoint" and endpoint is not None:
            return self._circuit(str(endpoint))
        scheme, _, host, target = split_url(request.url)
        name = f"{scheme}://{host}"
        if self._options.scope == "route":
            name += target.partition("?")[0]
        circuit = self._circuit(name)
        if len(self._by_url) >= MAX_URLS:
            self._by_url = {}
        self._by_url[request.url] = circuit
        return circuit

    def _circuit(self, name: str) -> Circuit:
        circuit = self._circuits.get(name)
        if circuit is None:
            with self._lock:
                if len(self._circuits) >= MAX_CIRCUITS:
                    self._drop_circuits()
                circuit = self._circuits.setdefault(name, Circuit(name, self._options))
        return circuit

    def _drop_circuits(self) -> None:
        """Forget an eighth of them: closed ones first, and of those the ones that were not used for longest."""
        known = sorted(self._circuits.values(), key=lambda each: (each.state != STATE_CLOSED, each.used))
        gone = {circuit.name for circuit in known[: MAX_CIRCUITS // 8]}
        self._circuits = {name: circuit for name, circuit in self._circuits.items() if name not in gone}
        self._by_url = {}

    # Before a call

    async def _admit_shared(self, circuit: Circuit, now: float) -> Permit | None:
        is_old = circuit.failures > 0 or now - circuit.synced >= FRESH
        if is_old and circuit.state == STATE_CLOSED and not circuit.is_looked_at:
            # One looks; the others go on with what is known.
            circuit.is_looked_at = True
            try:
                await self._ask("look", circuit, None)
            finally:
                circuit.is_looked_at = False
        permit = circuit.admit(now)
        if permit is None or not permit.is_probe:
            return permit
        try:
            snapshot = await self._ask("ask", circuit, permit)
        except BaseException:
            self._released(circuit, permit)
            raise
        if snapshot is None or snapshot.granted:
            return permit
        circuit.release(permit)
        if circuit.state == STATE_CLOSED:
            return circuit.admit(now)
        circuit.hold(now + DENIED)
        return None

    async def _wait(self, circuit: Circuit, until: float) -> Permit | None:
        """Wait for a permit; None when `until` has come without one, or too many wait already."""
        runtime = self._context.runtime
        while len(circuit.waiting) < MAX_WAITING and (now := self._now()) < until:
            event = runtime.event()
            circuit.waiting.add(event)
            try:
                closed = await event.wait(min(until - now, circuit.retry_after(now)))
            finally:
                circuit.waiting.discard(event)
            if closed:
                # All of them at once would be too much for a server that has just come back.
                await runtime.sleep(random.random() * SPREAD)
            now = self._now()
            permit = circuit.admit(now) if self._redis is None else await self._admit_shared(circuit, now)
            if permit is not None:
                return permit
        return None

    def _refusal(self, circuit: Circuit, now: float) -> CircuitOpen:
        after = circuit.retry_after(now)
        return CircuitOpen(
            f"the circuit of {circuit.name} is open; next probe in {after:.3g} s",
            retry_after=after,
            circuit=circuit.name,
            endpoint=circuit.name,
        )

    # After it

    async def _failed(self, circuit: Circuit, permit: Permit) -> None:
        now = self._now()
        if self._redis is None:
            self._tell(circuit, circuit.fail(permit, now))
            return
        step = circuit.report(permit, now)
        if step is not None and await self._ask(step, circuit, permit) is None:
            self._fail_alone(circuit, permit)

    def ended(self, circuit: Circuit, permit: Permit, failed: bool | None) -> None:
        """A body has ended, or has proved enough: that it failed, that it did well, or nothing (None)."""
        now = self._now()
        if failed is None:
            self._released(circuit, permit)
        elif not failed:
            self._succeeded(circuit, permit, now)
        elif self._redis is None:
            self._tell(circuit, circuit.fail(permit, now))
        elif (step := circuit.report(permit, now)) is not None:
            self._post(step, circuit, permit, alone=True)

    def _succeeded(self, circuit: Circuit, permit: Permit, now: float) -> None:
        had_failures = circuit.failures > 0
        change = circuit.succeed(permit, now)
        self._tell(circuit, change)
        if self._redis is None:
            return
        if permit.is_probe:
            self._post("good", circuit, permit)
        elif had_failures:
            self._post("reset", circuit, permit)

    def _released(self, circuit: Circuit, permit: Permit) -> None:
        circuit.release(permit)
        if self._redis is not None and permit.is_probe:
            self._post("release", circuit, permit)

    def _fail_alone(self, circuit: Circuit, permit: Permit) -> None:
        self._tell(circuit, circuit.fail(permit, self._now(), reported=True))

    # Redis

    async def _ask(self, step: str, circuit: Circuit, permit: Permit | None) -> Snapshot | None:
        assert self._redis is not None
        run = self._steps.step(step, circuit, permit)
        undo = self._steps.step("release", circuit, permit)

        def take(redis: object) -> Snapshot:
            snapshot = run(redis)
            if permit is not None and snapshot.granted:
                if permit.settled:
                    # Its caller was cancelled while it asked.
                    undo(redis)
                permit.epoch = snapshot.epoch
            self._tell(circuit, circuit.adopt(snapshot, self._now()))
            return snapshot

        return await self._redis.ask(self._context.runtime, take, None)

    def _post(self, step: str, circuit: Circuit, permit: Permit, *, alone: bool = False) -> None:
        assert self._redis is not None
        run = self._steps.step(step, circuit, permit)
        self._redis.post(
            lambda redis: self._tell(circuit, circuit.adopt(run(redis), self._now())),
            (lambda: self._fail_alone(circuit, permit)) if alone else None,
        )

    # Telling

    def _tell(self, circuit: Circuit, change: Change | None) -> None:
        if change is None:
            return
        if change.state == STATE_CLOSED:
            for event in list(circuit.waiting):
                event.set()
        emit = self._context.emit
        if not emit:
            return
        now = self._now()
        if change.state == STATE_OPEN:
            emit(CircuitOpened(time=now, circuit=circuit.name, reason=change.reason, seconds=change.seconds))
        else:
            emit(CircuitClosed(time=now, circuit=circuit.name))

    def _tell_half_open(self, circuit: Circuit) -> None:
        if self._context.emit:
            self._context.emit(CircuitHalfOpen(time=self._now(), circuit=circuit.name))

    def stats(self) -> Mapping[str, CircuitStats]:
        now = self._now()
        return {name: circuit.stats(now) for name, circuit in list(self._circuits.items())}

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()

    def __repr__(self) -> str:
        return f"<BreakerLayer {list(self._circuits.values())}>"


class _Watch:
    """Follows one body to its end."""

    __slots__ = ("_circuit", "_head", "_layer", "_permit")

    def __init__(self, layer: BreakerLayer, circuit: Circuit, permit: Permit) -> None:
        self._layer = layer
        self._circuit = circuit
        self._permit = permit
        self._head = 0.0

    def follow(self, response: Response) -> None:
        if self._permit.is_probe:
            self._head = self._layer._now()
            response.observe(self._chunk, self._end)
        else:
            response.observe(None, self._end)

    def _chunk(self, data: bytes) -> bytes:
        if not self._permit.settled and self._layer._now() - self._head >= TALKING:
            self._layer.ended(self._circuit, self._permit, False)
        return data

    def _end(self, error: BaseException | None) -> None:
        self._layer.ended(self._circuit, self._permit, judge_end(error))
