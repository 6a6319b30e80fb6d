"""The telemetry layers: one around each call, one around each attempt.

Rules of this file:

- A watcher is told of a beginning and of exactly one end. The end is that of the body, of the call's failure, or of
  its cancellation, whichever comes first.
- What a watcher does wrong is logged and changes nothing for the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from netkit import Request, Response, Send
from netkit.errors import PluginError
from netkit.plugins import Context
from netkit_plugins.telemetry.options import TelemetryOptions

__all__ = ["CALL", "Observation", "TelemetryLayer", "Watcher"]

log = logging.getLogger("netkit.telemetry")

CALL: Final = "telemetry"
"""Key of `request.extensions`: the call's observations, for those of its attempts."""

End = Callable[[Response | None, BaseException | None], None]


class Observation(Protocol):
    """One watcher's view of one call."""

    def answered(self, response: Response) -> None:
        """Its head is here."""
        ...

    def end(self, response: Response | None, error: BaseException | None) -> None:
        """It is over; `error` is None, `netkit.errors.BodyClosed` where the caller left early, or the failure."""
        ...

    def attempt(self, request: Request) -> tuple[Request, End]:
        """It is about to be sent: what to send (headers may be added), and what to tell at the attempt's end."""
        ...


class Watcher(Protocol):
    """Someone who is told of calls."""

    def begin(self, request: Request) -> Observation: ...


class TelemetryLayer:
    """One per session and set of options."""

    def __init__(self, options: TelemetryOptions, context: Context) -> None:
        self._watchers = _watchers(options, context)
        self._quiet = not self._watchers

    async def __call__(self, request: Request, send: Send) -> Response:
        if self._quiet:
            return await send(request)
        observations = [seen for watcher in self._watchers if (seen := _told(watcher.begin, request)) is not None]
        request = request.replace(extensions={**request.extensions, CALL: observations})
        try:
            response = await send(request)
        except BaseException as error:
            for seen in observations:
                _told(seen.end, None, error)
            raise
        for seen in observations:
            _told(seen.answered, response)

        def over(error: BaseException | None) -> None:
            for seen in observations:
                _told(seen.end, response, error)

        response.observe(on_end=over)
        return response

    async def around_attempt(self, request: Request, send: Send) -> Response:
        """Innermost: once for each time that the request goes to the transport."""
        observations: list[Observation] = request.extensions.get(CALL, ())
        ends: list[End] = []
        for seen in observations:
            told = _told(seen.attempt, request)
            if told is not None:
                request, end = told
                ends.append(end)
        if not ends:
            return await send(request)
        try:
            response = await send(request)
        except BaseException as error:
            for end in ends:
                _told(end, None, error)
            raise

        def over(error: BaseException | None) -> None:
            for end in ends:
                _told(end, response, error)

        response.observe(on_end=over)
        return response


def _told(tell: Callable[..., Any], *args: Any) -> Any:
    try:
        return tell(*args)
    except Exception:
        log.exception("netkit: telemetry failed")
        return None


def _watchers(options: TelemetryOptions, context: Context) -> tuple[Watcher, ...]:
    """Imported here: a library is needed only by who asked for it."""
    found: list[Watcher] = []
    if options.otel:
        with _Needs("otel", "opentelemetry"):
            from netkit_plugins.telemetry.otel import OtelWatcher
        found.append(OtelWatcher(options, context))
    if options.prometheus or options.prometheus_port is not None:
        with _Needs("prometheus", "prometheus_client"):
            from netkit_plugins.telemetry.prometheus import PrometheusWatcher
        found.append(PrometheusWatcher(options, context))
    if options.log is not None:
        from netkit_plugins.telemetry.lines import LineWatcher

        found.append(LineWatcher(options.log, context))
    if options.top:
        from netkit import monitor

        monitor.serve()
    return tuple(found)


class _Needs:
    """Says which extra is missing, instead of the name of a module."""

    def __init__(self, extra: str, package: str) -> None:
        self._extra = extra
        self._package = package

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == self._package:
            raise PluginError(f"telemetry.{self._extra}: install netkit-http[{self._extra}]") from error
