"""The server's last word on one origin, credential and model: a pause, and what is left until its own reset.

Rules of this file:

- The latest answer wins: it knows of everything that the server had counted. What is still unanswered is subtracted,
  for the server may not have counted it yet.
- Nothing that a server says keeps callers away for longer than `MAX_PAUSE`: then one attempt asks again.
- No lock: each field is set in one step, and a session that sees the other's change late sends one attempt too many.
"""

from __future__ import annotations

from typing import Final

from netkit_plugins.limit.reported import Report

__all__ = ["DEFAULT_PAUSE", "MAX_PAUSE", "Word"]

MAX_PAUSE: Final = 60.0
DEFAULT_PAUSE: Final = 1.0
"""Seconds of the first pause where a refusal named none; each further refusal in a row doubles it."""
AGREE: Final = 0.01
"""Seconds by which two clocks' ideas of one pause may differ."""


class Word:
    """Shared by all sessions of a process. Times are monotonic seconds."""

    __slots__ = ("_requests", "_requests_reset", "_tokens", "_tokens_reset", "paused_at", "paused_until", "refusals")

    def __init__(self) -> None:
        self.paused_at = 0.0
        self.paused_until = 0.0
        self.refusals = 0
        """Pauses in a row without a success in between."""
        self._requests: float | None = None
        self._requests_reset = 0.0
        self._tokens: float | None = None
        self._tokens_reset = 0.0

    def pause(self, now: float, seconds: float | None, *, sent: float) -> float | None:
        """Nobody goes for `seconds`; None where the server named none. How long, or None when it is paused already.

        `sent` is when the refused attempt went. Those that were under way when the pause began are the same refusal,
        told once more.
        """
        again = sent <= self.paused_at
        if seconds is None:
            if again:
                return None
            seconds = min(MAX_PAUSE, DEFAULT_PAUSE * 2 ** min(self.refusals, 10))
        until = now + min(seconds, MAX_PAUSE)
        is_new = now >= self.paused_until and not again
        if is_new:
            self.paused_at = now
            self.refusals += 1
        self.paused_until = max(self.paused_until, until)
        return self.paused_until - now if is_new else None

    def hear(self, now: float, seconds: float) -> None:
        """Another process is paused for `seconds` from now on."""
        until = now + min(seconds, MAX_PAUSE)
        if until > self.paused_until + AGREE:
            self.paused_at = now
            self.paused_until = until

    def succeeded(self) -> None:
        self.refusals = 0

    def learn(self, now: float, report: Report, unanswered: int, unanswered_tokens: float) -> None:
        """Take over what an answer says."""
        if report.requests is not None and report.requests_reset is not None:
            self._requests_reset = now + min(report.requests_reset, MAX_PAUSE)
            self._requests = max(0.0, report.requests - unanswered)
        if report.tokens is not None and report.tokens_reset is not None:
            self._tokens_reset = now + min(report.tokens_reset, MAX_PAUSE)
            self._tokens = max(0.0, report.tokens - unanswered_tokens)

    def wait(self, now: float, tokens: float) -> float:
        """Seconds until an attempt of so many tokens may go; 0.0 at once."""
        until = self.paused_until
        if self._requests is not None and self._requests < 1:
            until = max(until, self._requests_reset)
        # What is more than the server would ever have left must go some time: once all is there again.
        if self._tokens is not None and self._tokens < max(tokens, 1.0):
            until = max(until, self._tokens_reset)
        return max(0.0, until - now)

    def spend(self, now: float, tokens: float) -> None:
        """An attempt goes. After a reset nothing is known until the next answer."""
        if self._requests is not None:
            self._requests = None if now >= self._requests_reset else self._requests - 1
        if self._tokens is not None:
            self._tokens = None if now >= self._tokens_reset else self._tokens - tokens

    @property
    def counts_tokens(self) -> bool:
        """Whether the server says how many tokens are left."""
        return self._tokens is not None

    def __repr__(self) -> str:
        return f"<Word paused_until={self.paused_until:.3f} requests={self._requests} tokens={self._tokens}>"
