"""Options of the telemetry plugin."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TelemetryOptions"]


@dataclass(frozen=True)
class TelemetryOptions:
    """Where what happens is told. Counters behind `netkit.stats()` are always on and cost nothing more here."""

    otel: bool = False
    """Spans and metrics through OpenTelemetry's global providers: a span for each call, a child for each attempt.
    Needs netkit-http[otel]; what is done with them is for the program's SDK to say."""
    propagate: bool = True
    """With `otel`: add `traceparent` and its like to what is sent, as the global propagator says."""
    gen_ai: bool = True
    """With `otel`: name spans of embedding and chat calls by model; with token usage where an answer tells it."""
    prometheus: bool = False
    """Register netkit's collector with prometheus_client's default registry. Needs netkit-http[prometheus]."""
    prometheus_port: int | None = None
    """Serve `/metrics` on this port of 127.0.0.1, once per process; implies `prometheus`. Where it is taken, a
    warning is logged: of several workers, one serves its own numbers. None: do not."""
    log: str | None = None
    """JSON lines, one for each call: "stderr", "stdout", "logging" (the logger `netkit.calls`, level INFO), or a file
    that is appended to. None: none."""
    top: bool = False
    """Let `netkit top` look at this process, through a socket that only the same user can open."""

    def __post_init__(self) -> None:
        if self.prometheus_port is not None and not 0 < self.prometheus_port < 65536:
            raise ValueError(f"prometheus_port must be between 1 and 65535, not {self.prometheus_port}")
        if self.log is not None and not self.log.strip():
            raise ValueError('log must be "stderr", "stdout", "logging" or a file, not an empty text')
