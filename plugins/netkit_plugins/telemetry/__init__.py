"""What happens to calls, told to those who watch: OpenTelemetry, Prometheus, JSON lines, `netkit top`.

Example::

    [tool.netkit.telemetry]
    otel = true                 # spans and metrics; the program sets up OpenTelemetry's SDK
    prometheus_port = 9464      # curl localhost:9464/metrics
    log = "calls.jsonl"

Why here and not an instrumentation of each stack: one layer sees every stack, sees a retry, a hedge and a cache hit
for what they are (a call that a cache answered has no attempt), and ends a span when its body ends, not when its
headers arrive. OpenTelemetry's own instrumentations may run beside it; their spans are then siblings of netkit's.

Order: outermost. A call's span then covers the wait for a limit and the pauses between retries; its attempts are told
by a second layer inside all others.

Names follow OpenTelemetry's semantic conventions for HTTP clients and for generative AI. No credential and no
body ever gets into a span, a label or a line; URLs pass `netkit.redaction.safe_url`. Labels are stack, method, host
and status: a thousand URLs of one host are one series.
"""

from __future__ import annotations

from typing import Any

import netkit
from netkit_plugins.telemetry.layer import TelemetryLayer
from netkit_plugins.telemetry.options import TelemetryOptions

__all__ = ["TelemetryLayer", "TelemetryOptions", "netkit_register"]


@netkit.hookimpl
def netkit_register(register: Any) -> None:
    register(
        "telemetry",
        TelemetryLayer,
        options=TelemetryOptions,
        request_headers=("traceparent", "tracestate", "baggage"),
        summary="OpenTelemetry spans and metrics, Prometheus, JSON lines, netkit top",
    )
