"""OpenTelemetry: a span for each call, a child for each attempt, and the durations as metrics.

Rules of this file:

- Providers are the global ones, asked for when a session is made; until the program sets some, all this does nothing.
- Attributes are those of the semantic conventions: HTTP client spans, and generative AI where a path says so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from netkit import Headers, Request, Response
from netkit.errors import BodyClosed
from netkit.plugins import Context
from netkit.redaction import safe_url
from netkit_plugins.telemetry.kinds import OTHER, Few, address_of, error_type, method_of, operation_of
from netkit_plugins.telemetry.options import TelemetryOptions

__all__ = ["OtelWatcher"]

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bucket bounds that the conventions advise for HTTP durations."""
LONG_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""… and for operations of generative AI."""
TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
TAIL: Final = 4096
"""Bytes at an answer's end in which its token usage is looked for: servers write it last."""
MODEL_LENGTH: Final = 128
MAX_SERIES: Final = 100
"""Servers, and models, with series of their own; spans always name theirs."""

_server: Final = Few(MAX_SERIES)
_model: Final = Few(MAX_SERIES)

_INPUT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})')


class _Asked(msgspec.Struct):
    """What is read of a request to a model."""

    model: str = ""
    stream: bool = False
    max_tokens: int | None = None
    dimensions: int | None = None


_read_asked: Final = msgspec.json.Decoder(_Asked).decode


class OtelWatcher:
    def __init__(self, options: TelemetryOptions, context: Context) -> None:
        import netkit

        self.propagate = options.propagate
        self.gen_ai = options.gen_ai
        self.stack = context.stack
        self.tracer = trace.get_tracer("netkit", netkit.__version__)
        meter = metrics.get_meter("netkit", netkit.__version__)
        self.duration = meter.create_histogram(
            "http.client.request.duration",
            "s",
            "Duration of HTTP attempts",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self.operation = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "Duration of calls",
            explicit_bucket_boundaries_advisory=LONG_SECONDS,
        )
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens of calls", explicit_bucket_boundaries_advisory=TOKENS
        )

    def begin(self, request: Request) -> _Call:
        return _Call(self, request)


class _Call:
    def __init__(self, watcher: OtelWatcher, request: Request) -> None:
        self._watcher = watcher
        self._started = time.monotonic()
        self._attempts = 0
        self._tail = b""
        self._labels: dict[str, Any] = {}
        attributes = _request_attributes(request) | {"netkit.stack": watcher.stack}
        name, kind = f"call {method_of(request.method)}", SpanKind.INTERNAL
        operation = operation_of(request.url) if watcher.gen_ai and request.method == "POST" else None
        if operation is not None:
            asked = _asked(request)
            model = asked.model[:MODEL_LENGTH]
            self._labels = {"gen_ai.operation.name": operation, **_server_labels(attributes)}
            attributes["gen_ai.operation.name"] = operation
            if model:
                self._labels["gen_ai.request.model"] = _model(model)
                attributes["gen_ai.request.model"] = model
            name, kind = f"{operation} {model}".rstrip(), SpanKind.CLIENT
            if asked.stream:
                attributes["gen_ai.request.stream"] = True
            if asked.max_tokens is not None:
                attributes["gen_ai.request.max_tokens"] = asked.max_tokens
            if asked.dimensions is not None:
                attributes["gen_ai.embeddings.dimension.count"] = asked.dimensions
        self._span: Span = watcher.tracer.start_span(name, kind=kind, attributes=attributes)
        self._context = trace.set_span_in_context(self._span)

    def answered(self, response: Response) -> None:
        self._span.set_attribute("http.response.status_code", response.status)
        for key in ("cached", "coalesced"):
            if response.extensions.get(key):
                self._span.set_attribute(f"netkit.{key}", True)
        if self._labels:
            response.observe(self._keep_tail)

    def _keep_tail(self, chunk: bytes) -> bytes:
        self._tail = (self._tail + chunk)[-TAIL:] if len(chunk) < TAIL else chunk[-TAIL:]
        return chunk

    def attempt(self, request: Request) -> tuple[Request, Callable[[Response | None, BaseException | None], None]]:
        watcher = self._watcher
        self._attempts += 1
        attributes = _request_attributes(request)
        labels = {"http.request.method": attributes["http.request.method"], **_server_labels(attributes)}
        if self._attempts > 1:
            attributes["http.request.resend_count"] = self._attempts - 1
        span = watcher.tracer.start_span(
            method_of(request.method), self._context, kind=SpanKind.CLIENT, attributes=attributes
        )
        if watcher.propagate:
            carrier: dict[str, str] = {}
            propagate.inject(carrier, trace.set_span_in_context(span))
            headers: Headers = request.headers
            for name, value in carrier.items():
                headers = headers.set(name, value)
            request = request.replace(headers=headers) if carrier else request
        started = time.monotonic()

        def end(response: Response | None, error: BaseException | None) -> None:
            found = _outcome(response, error)
            _finish(span, found, response, error)
            watcher.duration.record(time.monotonic() - started, labels | found)

        return request, end

    def end(self, response: Response | None, error: BaseException | None) -> None:
        watcher = self._watcher
        found = _outcome(response, error)
        self._span.set_attribute("netkit.attempts", self._attempts)
        if self._labels:
            labels = self._labels | ({"error.type": found["error.type"]} if "error.type" in found else {})
            watcher.operation.record(time.monotonic() - self._started, labels)
            for kind, pattern in (("input", _INPUT), ("output", _OUTPUT)):
                counted = pattern.findall(self._tail)
                if counted:
                    self._span.set_attribute(f"gen_ai.usage.{kind}_tokens", int(counted[-1]))
                    watcher.tokens.record(int(counted[-1]), self._labels | {"gen_ai.token.type": kind})
        _finish(self._span, found, response, error)


def _request_attributes(request: Request) -> dict[str, Any]:
    host, port = address_of(request.url)
    return {
        "http.request.method": method_of(request.method),
        "server.address": host,
        "server.port": port,
        "url.full": safe_url(request.url),
        "url.scheme": request.url.partition("://")[0],
    }


def _server_labels(attributes: dict[str, Any]) -> dict[str, Any]:
    """Of a call's or an attempt's attributes those that tell its server, for metrics."""
    host, port = attributes["server.address"], attributes["server.port"]
    if _server(f"{host}:{port}") == OTHER:
        return {"server.address": OTHER}
    return {"server.address": host, "server.port": port}


def _asked(request: Request) -> _Asked:
    content = request.body.content
    if content is None:
        return _Asked()
    try:
        return _read_asked(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Asked()


def _outcome(response: Response | None, error: BaseException | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if response is not None:
        found["http.response.status_code"] = response.status
        version = response.extensions.get("http_version", "")
        if version:
            found["network.protocol.version"] = version.removeprefix("HTTP/")
        if response.status >= 400:
            found["error.type"] = str(response.status)
    if error is not None and not isinstance(error, BodyClosed):
        found["error.type"] = error_type(error)
    return found


def _finish(span: Span, found: dict[str, Any], response: Response | None, error: BaseException | None) -> None:
    span.set_attributes(found)
    if isinstance(error, BodyClosed):
        span.add_event("closed by the caller")
    elif "error.type" in found:
        # The kind alone: messages of foreign libraries may hold URLs.
        span.set_status(Status(StatusCode.ERROR, found["error.type"] if error is not None else None))
    span.end()
