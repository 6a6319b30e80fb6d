"""Faults: what a server, a wire or a proxy does to its clients on a bad day, as values that a test writes down.

Example::

    with MockGPU(faults=[faults.ResetBeforeHeaders(path="/v1/*", nth=2)]) as gpu: ...
    gpu.faults.push(faults.statuses(503, 503, 200, headers={"retry-after": "1"}))

All take the conditions `path`, `method`, `when`, `connection`, `request`, `nth`, `times` of `Fault` (those of a
connection: `connection`, `nth`, `times`). `times` is 1 unless the fault says otherwise; None means always. Several
compose: the script runs the first that fits, which may let the next ones follow (Latency and Hold do, a reset not).
Refused connects are `gpu.pause_listening()`; round-trip time and bandwidth are options of MockGPU.
"""

from __future__ import annotations

from ._answers import Data, Edit, Hold, Latency, Pass, RateLimit, Status, statuses
from ._base import ConnectionFault, Fault, FaultScript, Proceed, respond
from ._http2 import (
    ContinuationFlood,
    DelayedSettings,
    Flood,
    GoAway,
    OversizeHeaders,
    PingUnanswered,
    ResetStream,
    SettingsChange,
    StalledWindow,
)
from ._transport import (
    AcceptDelay,
    BlackHole,
    CloseAfterHeaders,
    CloseBeforeHeaders,
    CloseIdle,
    CloseOnAccept,
    CutBody,
    EarlyResponse,
    Malformed,
    ResetAfterHeaders,
    ResetBeforeHeaders,
    ShortBody,
    SlowDrip,
    SlowHeaders,
)

__all__ = [
    "AcceptDelay",
    "BlackHole",
    "CloseAfterHeaders",
    "CloseBeforeHeaders",
    "CloseIdle",
    "CloseOnAccept",
    "ConnectionFault",
    "ContinuationFlood",
    "CutBody",
    "Data",
    "DelayedSettings",
    "EarlyResponse",
    "Edit",
    "Fault",
    "FaultScript",
    "Flood",
    "GoAway",
    "Hold",
    "Latency",
    "Malformed",
    "OversizeHeaders",
    "Pass",
    "PingUnanswered",
    "Proceed",
    "RateLimit",
    "ResetAfterHeaders",
    "ResetBeforeHeaders",
    "ResetStream",
    "SettingsChange",
    "ShortBody",
    "SlowDrip",
    "SlowHeaders",
    "StalledWindow",
    "Status",
    "respond",
    "statuses",
]
