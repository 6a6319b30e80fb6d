"""What may be sent again, and when: pure decisions on verdicts, statuses and headers.

Rules of this file:

- Nothing here waits, counts or knows a runtime.
- A call that may have run is resent only if running twice does no harm: RFC 9110 section 9.2.2.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Final

from tenacity import wait_exponential, wait_random_exponential
from tenacity.wait import wait_base

from netkit import Headers, Request, Verdict
from netkit.errors import FailureKind, TransportError
from netkit.pure import Routes
from netkit.retry_after import requested_delay
from netkit_plugins.retry.options import RetryOptions

__all__ = ["Failure", "RetryPolicy", "is_permanent", "may_be_permanent"]

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
REFUSED_STATUSES: Final = frozenset({421, 425})
"""Misdirected Request (RFC 9110 section 15.5.20) and Too Early (RFC 8470): not processed, send again."""

PURE_STATUSES: Final = frozenset({500})
UNPROCESSED_SERVER_ERRORS: Final = frozenset({503})
NEVER_RESENT: Final = frozenset(
    {FailureKind.CERTIFICATE, FailureKind.POOL, FailureKind.CIRCUIT, FailureKind.DEADLINE, FailureKind.BODY}
)
"""A bad certificate stays bad; the others are this process holding back, which a retry would only undo."""

LOST: Final = frozenset({FailureKind.DISCONNECTED, FailureKind.RESET, FailureKind.WRITE})
MAX_ERROR_BODY: Final = 64 * 1024


@dataclasses.dataclass(frozen=True)
class Failure:
    """An outcome that policy would rather have again.

    `any_method` is true when the server has surely not processed the request. `after` is the wait in seconds that
    the server asked for, None for the policy's own backoff. `at_once` marks a reused connection that was lost: the
    server is probably well, and only the idle connection was gone.
    """

    reason: str
    any_method: bool
    after: float | None = None
    at_once: bool = False


class RetryPolicy:
    """Decides for one set of options. Immutable; safe from any thread."""

    def __init__(self, options: RetryOptions) -> None:
        self.options = options
        self.budget_ratio = options.budget_ratio
        """May be moved while the session works."""
        self.statuses = frozenset(options.statuses)
        self.backoff = _backoff(options)
        """A tenacity wait strategy: seconds before the next attempt where the server asked for nothing."""
        self._pure = Routes(options.pure)

    def is_pure_route(self, url: str) -> bool:
        """Whether the path of `url` matches one of the `pure` patterns; a trailing slash does not count."""
        return url in self._pure

    def judge_error(self, error: TransportError) -> Failure | None:
        """None when sending again cannot help."""
        if error.kind in NEVER_RESENT or error.verdict is Verdict.PROCESSED:
            return None
        status = error.details.get("status")
        if error.kind is FailureKind.PROXY and status and status not in self.statuses:
            # A proxy that refused the tunnel has answered: its status counts as an answer's does.
            return None
        return Failure(
            reason=error.kind.value,
            any_method=error.verdict is not Verdict.AMBIGUOUS,
            at_once=error.kind in LOST and error.details.get("reused") is True,
        )

    def judge_answer(self, status: int, headers: Headers, *, pure: bool, wall: float) -> Failure | None:
        """None when the answer is the caller's. `wall` is the time as seconds since 1970.

        `x-should-retry` decides where it is sent. Without it 4xx and 503 say that nothing was processed, so any
        method may be sent again; 500, 502, 504 and the rest leave it open.
        """
        if status < 400 or not self.statuses:
            return None
        said = (headers.get("x-should-retry") or "").strip().lower()
        listed = status in self.statuses or (pure and status in PURE_STATUSES)
        if said == "false" or not (listed or said == "true"):
            return None
        return Failure(
            reason=str(status),
            any_method=said == "true" or status < 500 or status in UNPROCESSED_SERVER_ERRORS,
            after=requested_delay(headers, wall) if self.options.respect_retry_after else None,
        )

    def denial(self, failure: Failure, request: Request, *, pure: bool, unsent: bool = False) -> str | None:
        """Why a retry that is due must not be sent ("unsafe", "body", "retry-after"), or None.

        `unsent` says that the body was not touched, so that even a one-shot body is still whole.
        """
        if not failure.any_method and not pure and not self.is_repeatable(request):
            return "unsafe"
        if not request.body.replayable and not unsent:
            return "body"
        if failure.after is not None and failure.after > self.options.retry_after_max:
            return "retry-after"
        return None

    def is_repeatable(self, request: Request) -> bool:
        """Whether the method, or a key that lets the server recognise a repetition, allows sending twice."""
        return request.method.upper() in IDEMPOTENT or "idempotency-key" in request.headers


def _backoff(options: RetryOptions) -> wait_base:
    first, most = options.backoff_initial, options.backoff_max
    if options.jitter == "none":
        return wait_exponential(multiplier=first, max=most)
    if options.jitter == "full":
        return wait_random_exponential(multiplier=first, max=most)
    half = wait_exponential(multiplier=first / 2, max=most / 2)
    return half + wait_random_exponential(multiplier=first / 2, max=most / 2)


def may_be_permanent(status: int, headers: Headers) -> bool:
    """Whether a 429 carries a small JSON body of known size, in which `is_permanent` can look."""
    if status != 429 or "json" not in headers.get("content-type", ""):
        return False
    length = headers.get("content-length", "")
    return length.isascii() and length.isdigit() and int(length[:9]) <= MAX_ERROR_BODY


def is_permanent(content: bytes) -> bool:
    """Whether the error says that the account has no quota left: waiting does not bring it back."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = zlib.decompressobj(wbits=31).decompress(content, MAX_ERROR_BODY)
        except zlib.error:
            return False
    return b'"insufficient_quota"' in content
