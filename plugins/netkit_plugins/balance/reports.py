"""What servers say about their load with an answer.

`endpoint-load-metrics` (ORCA) as vLLM and Triton send it, in its three forms:

    endpoint-load-metrics: TEXT cpu_utilization=0.3, named_metrics.kv_cache_utilization=0.7
    endpoint-load-metrics: JSON {"cpu_utilization": 0.3, "named_metrics": {"kv_cache_utilization": 0.7}}
    endpoint-load-metrics: BIN …      (a protobuf message: not read)

and the milliseconds that text-embeddings-inference spent in its queue (`x-queue-time`) and at work
(`x-inference-time`).
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from netkit import Headers

__all__ = ["utilisation_of"]

NAMES: Final = (
    "application_utilization",
    "kv_cache_utilization",
    "kv_cache_usage_perc",
    "gpu_utilization",
    "cpu_utilization",
)
"""Metrics that say how near a server is to its limit; the largest counts."""
LONGEST: Final = 4096


def utilisation_of(headers: Headers) -> float | None:
    """0.0 idle to 1.0 at its limit, None where the server said nothing that can be read."""
    report = headers.get("endpoint-load-metrics")
    if report:
        return _orca(report[:LONGEST])
    queued, worked = _milliseconds(headers.get("x-queue-time")), _milliseconds(headers.get("x-inference-time"))
    if queued is None:
        return None
    # The share of its time that an answer waited: half means that as much work stood before it as was its own.
    return queued / (queued + worked) if worked else queued / (queued + 1.0)


def _orca(report: str) -> float | None:
    form, _, rest = report.strip().partition(" ")
    metrics = _json(rest) if form.upper() == "JSON" else _text(rest) if form.upper() == "TEXT" else {}
    found = [
        value for name in NAMES if (value := metrics.get(name)) is not None and math.isfinite(value) and value >= 0
    ]
    return min(max(found), 1.0) if found else None


def _json(text: str) -> dict[str, float]:
    try:
        read: Any = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {}
    if not isinstance(read, dict):
        return {}
    named = read.get("named_metrics")
    both = {**read, **(named if isinstance(named, dict) else {})}
    return {
        name: float(value)
        for name, value in both.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _text(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            found[name.strip().removeprefix("named_metrics.")] = float(value)
        except ValueError:
            continue
    return found


def _milliseconds(value: str | None) -> float | None:
    try:
        read = float(value or "")
    except ValueError:
        return None
    return read if math.isfinite(read) and read >= 0 else None
