"""The adaptive layer: notes how calls end, and lets the controller decide between two of them.

Rules of this file:

- How a call ends is noted without a lock: that can be anywhere, also in the garbage collector.
- Decisions are made in a caller's own steps, by one caller at a time; the others go on and do not wait for it.
- Nothing that goes wrong here reaches a caller: it is logged, the settings go back, and are left alone from then on.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping
from typing import Final

import msgspec

from netkit import Context, Request, Response, Send, fork
from netkit.errors import BodyClosed, TransportError
from netkit.events import KnobMoved
from netkit.knobs import Knob
from netkit.stats import Counter, Meter
from netkit_plugins.adaptive.controller import Controller, Move
from netkit_plugins.adaptive.options import AdaptiveOptions
from netkit_plugins.adaptive.phase import MAX_CALLS, Phase
from netkit_plugins.adaptive.window import Ended, outcome_of, window_of

__all__ = ["AdaptiveLayer", "AdaptiveStats", "KnobStats"]

log = logging.getLogger("netkit.adaptive")

LONGEST: Final = 10
"""A window that has not seen enough calls after so many times its length says nothing."""
GLANCES: Final = 3
"""Parts of a new value's window after each of which it is looked at, to end early what does harm."""

_driven: weakref.WeakSet[Meter] = weakref.WeakSet()
"""Sessions whose settings are moved by a layer already: a second one (a route's) would measure the first."""


class KnobStats(msgspec.Struct, frozen=True):
    """`value` now, `start` before the first trial, `moves` that stayed, `reverted` trials."""

    value: float = 0.0
    start: float = 0.0
    moves: int = 0
    reverted: int = 0


class AdaptiveStats(msgspec.Struct, frozen=True):
    """`windows` that counted, and those that said nothing (`idle`); `trials` begun, `moves` that stayed, trials that
    were `reverted`. `knobs`: each that can be moved in this session, by name."""

    windows: int = 0
    idle: int = 0
    trials: int = 0
    moves: int = 0
    reverted: int = 0
    knobs: Mapping[str, KnobStats] = {}


class AdaptiveLayer:
    """One per session; a further one (of a route, of an override) only lets calls pass."""

    def __init__(self, options: AdaptiveOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._now = context.runtime.now
        self._controller = Controller(options.knobs, dict(options.bounds), options.significance)
        self._idle, self._windows = Counter(), Counter()
        self._starts: dict[str, float] = {}
        self._moved = dict.fromkeys(options.knobs, 0)
        self._reverted = dict.fromkeys(options.knobs, 0)
        self._forked = False
        self._stopped = context.meter in _driven
        _driven.add(context.meter)
        self._begin()
        fork.register(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._phase, self._previous = Phase(), Phase()
        self._switched = self._start = self._now()
        self._settling = False
        self._leave_at = 0
        self._due = self._look_at = self._start + self._options.window

    def after_fork_in_child(self) -> None:
        """The parent's calls are not this process's, and its trial neither. The knob goes back with the next call:
        here the locks of its layer may not be made anew yet."""
        self._begin()
        self._forked = True
        self._look_at = self._start

    async def __call__(self, request: Request, send: Send) -> Response:
        if self._stopped:
            return await send(request)
        self._look()
        phase, began = self._phase, self._now()
        phase.begun.add()
        try:
            response = await send(request)
        except BaseException as error:
            if isinstance(error, TransportError):
                now = self._now()
                phase.calls.append(Ended(began, now, now, "failed"))
            phase.over.add()
            raise
        self._watch(response, phase, began)
        self._look()
        return response

    def _watch(self, response: Response, phase: Phase, began: float) -> None:
        answered = self._now()
        outcome = None if response.extensions.get("cached") is True else outcome_of(response.status)

        def over(error: BaseException | None) -> None:
            # Who leaves early, or is cancelled, says nothing about the server.
            failed = isinstance(error, TransportError) and not isinstance(error, BodyClosed)
            if outcome is not None and (error is None or failed):
                phase.calls.append(Ended(began, answered, self._now(), "failed" if failed else outcome))
            phase.over.add()

        response.observe(on_end=over)

    def _look(self) -> None:
        """Decide if it is time; unless another caller does so."""
        now = self._now()
        if now < self._look_at and len(self._phase.calls) < MAX_CALLS:
            return
        if not self._lock.acquire(False):
            return
        lock = self._lock
        moves: list[Move] = []
        try:
            self._decide(now, moves)
        except Exception:
            self._stopped = True
            log.exception("netkit: adaptive stops: a setting cannot be moved")
            self._restore(moves)
        finally:
            lock.release()
        for move in moves:
            self._tell(now, move)

    def _decide(self, now: float, moves: list[Move]) -> None:
        if self._forked:
            self._forked = False
            self._turn(self._controller.drop("fork"), now, moves)
        if self._settling:
            # Calls that began under another setting fill pool and server still. So many calls later they have left,
            # but for a long stream or two.
            ended = self._previous.over.value + self._phase.over.value
            if ended < self._leave_at and now < self._switched + LONGEST * self._options.window:
                return
            self._restart(now)
            return
        full = len(self._phase.calls) >= MAX_CALLS
        if now < self._due and not full:
            self._glance(now, moves)
            return
        if not full and len(self._phase.calls) < self._options.min_calls:
            if now >= self._start + LONGEST * self._options.window:
                self._idle.add()
                self._turn(self._controller.drop("idle"), now, moves)
                self._restart(now)
            return
        window = window_of(self._phase.take(), self._start)
        self._windows.add()
        self._restart(now)
        self._turn(self._controller.step(window, self._knobs()), now, moves)

    def _glance(self, now: float, moves: list[Move]) -> None:
        """Before its window is over, take a new value back that does harm."""
        self._look_at = min(self._due, now + self._options.window / GLANCES)
        if len(self._phase.calls) >= self._options.min_calls:
            part = window_of(self._phase.calls.copy(), self._start)
            self._turn(self._controller.glance(part, self._knobs()), now, moves)

    def _restart(self, now: float) -> None:
        self._settling = False
        self._phase.calls.clear()
        self._start = now
        self._due = now + self._options.window
        trial = self._controller.trial
        self._look_at = now + self._options.window / GLANCES if trial is not None and trial.is_new else self._due

    def _turn(self, move: Move | None, now: float, moves: list[Move]) -> None:
        """Set a knob, and measure from anew once what is under way has gone."""
        if move is None:
            return
        knob = self._knobs().get(move.knob)
        if knob is None:
            return
        knob.set(move.after)
        self._previous, self._phase = self._phase, Phase()
        self._settling, self._switched, self._look_at = True, now, now
        self._leave_at = self._previous.over.value + self._previous.under_way
        moves.append(move)

    def _restore(self, moves: list[Move]) -> None:
        try:
            move = self._controller.drop("failures")
            if move is not None:
                self._knobs()[move.knob].set(move.after)
                moves.append(move)
        except Exception:
            log.exception("netkit: adaptive: nor can it be put back")

    def _knobs(self) -> dict[str, Knob]:
        offered = self._context.knobs()
        found = {name: offered[name] for name in self._options.knobs if name in offered}
        for name, knob in found.items():
            if name not in self._starts:
                self._starts[name] = knob.get()
        return found

    def _tell(self, now: float, move: Move) -> None:
        if move.reason == "turn":
            log.debug("netkit: adaptive: %s is %g now", move.knob, move.after)
            return
        gain = "" if move.verdict is None else f" (gain {move.verdict.gain:.2f}, chance {move.verdict.chance:.2g})"
        if move.reason == "win":
            self._moved[move.knob] += 1
        elif move.reason != "trial":
            self._reverted[move.knob] += 1
        log.info("netkit: adaptive: %s from %g to %g: %s%s", move.knob, move.before, move.after, move.reason, gain)
        if self._context.emit:
            self._context.emit(
                KnobMoved(time=now, knob=move.knob, before=move.before, after=move.after, reason=move.reason)
            )

    def stats(self) -> AdaptiveStats:
        knobs = {
            name: KnobStats(knob.get(), self._starts[name], self._moved[name], self._reverted[name])
            for name, knob in ({} if self._stopped else self._knobs()).items()
        }
        return AdaptiveStats(
            windows=self._windows.value,
            idle=self._idle.value,
            trials=self._controller.trials.value,
            moves=sum(self._moved.values()),
            reverted=sum(self._reverted.values()),
            knobs=knobs,
        )

    def close(self) -> None:
        """A trial that is under way ends, and its knob goes back."""
        if self._lock.acquire(False):
            moves: list[Move] = []
            try:
                self._turn(self._controller.drop("closed"), self._now(), moves)
            except Exception:
                log.exception("netkit: adaptive: a setting cannot be put back")
            finally:
                self._lock.release()
            for move in moves:
                self._tell(self._now(), move)

    def __repr__(self) -> str:
        return f"<AdaptiveLayer {self._controller!r}>"
