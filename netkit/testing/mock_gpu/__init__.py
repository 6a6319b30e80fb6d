"""A mock GPU inference server: OpenAI, TEI and GME shapes over HTTP/1.1 and HTTP/2, on a modelled GPU, with a log.

`server` is what a test holds, `backend` what it is made of inside; `wire`, `connection`, `http1` and `http2` carry
bytes; `application`, `api` and `probes` answer; `gpus` models time; `expected` are the answers as functions.
"""

from __future__ import annotations

from .command import serve_forever
from .exchange import Answer, Exchange
from .expected import encoded_vector, expected_bytes, expected_tokens, expected_vector
from .gpus import GpuStats
from .handle import ConnectionHandle
from .log import ConnectionRecord, EventRecord, Log, RequestRecord
from .options import Options
from .server import MockGPU
from .signals import Signal
from .state import Stats

__all__ = [
    "Answer",
    "ConnectionHandle",
    "ConnectionRecord",
    "EventRecord",
    "Exchange",
    "GpuStats",
    "Log",
    "MockGPU",
    "Options",
    "RequestRecord",
    "Signal",
    "Stats",
    "encoded_vector",
    "expected_bytes",
    "expected_tokens",
    "expected_vector",
    "serve_forever",
]
