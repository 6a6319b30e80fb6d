"""One caller's call while it is being batched: what it asked for, what has come of it so far.

Rules of this file:

- Parts are kept by the number of their input, so that answers may come in any order and from several batches.
- A call ends once: with all its parts, with an answer that is its own as it stands, or with an error of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netkit.flow import Send
from netkit.forms import Answer, Form, Inputs, Part
from netkit.messages import Request, Response, Timeout
from netkit_plugins.batch.replies import Reply

__all__ = ["Ticket"]


class Ticket:
    """`event` wakes the caller: because its call is `done`, or because it has to look after the queue."""

    __slots__ = (
        "_envelope",
        "_left",
        "_outcome",
        "_parts",
        "_reply",
        "_usages",
        "batches",
        "done",
        "event",
        "form",
        "inputs",
        "joined",
        "place",
        "request",
        "send",
        "sent",
        "timeout",
    )

    def __init__(self, request: Request, send: Send, form: Form, inputs: Inputs, joined: float) -> None:
        self.request = request
        self.send = send
        self.form = form
        self.inputs = inputs
        self.joined = joined
        self.event: Any = None
        self.batches: list[Any] = []
        """Batches under way that hold a unit of it."""
        self.sent: float | None = None
        """When the last of its units went out; None while any waits."""
        self.timeout: Timeout | None = None
        """The limits with which its last batch went out."""
        self.place: tuple[int, int] | None = None
        """(size of the batch, position in it) of its first answered unit."""
        self.done = False
        self._parts: list[Part | None] = [None] * len(inputs.items)
        self._left = len(inputs.items)
        self._usages: list[Any] = []
        self._envelope: Any = None
        self._reply: Reply | None = None
        self._outcome: Reply | Exception | None = None

    def take(self, start: int, parts: Sequence[Part], answer: Answer, usage: Any, reply: Reply) -> None:
        """The answers to inputs `start` and following. The last one makes the call `done`."""
        if self.done:
            return
        self._parts[start : start + len(parts)] = parts
        self._left -= len(parts)
        self._usages.append(usage)
        if start == 0 or self._reply is None:
            self._envelope, self._reply = answer.envelope, reply
        self.done = self._left == 0

    def settle(self, outcome: Reply | Exception) -> None:
        """End the call with an answer as it stands, or with an error that is nobody else's."""
        if not self.done:
            self._outcome = outcome
            self.done = True

    def result(self) -> Response:
        """The caller's own answer; raises its own error. Asked once, by the caller, when it is done."""
        if isinstance(self._outcome, Exception):
            error, self._outcome = self._outcome, None
            try:
                raise error
            finally:
                # The error's traceback holds this frame.
                del error
        if self._outcome is not None:
            return self._outcome.response(self.place)
        assert self._reply is not None
        parts: Any = self._parts
        content = self.form.build(self._envelope, parts, self.form.joined_usage(self._usages))
        return self._reply.response(self.place, content)

    def __repr__(self) -> str:
        state = "done" if self.done else f"{self._left} of {len(self._parts)} left"
        return f"<Ticket {state}>"
