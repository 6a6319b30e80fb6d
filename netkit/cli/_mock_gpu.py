"""`netkit mock-gpu`: the mock GPU server in the foreground."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from netkit.cli._app import missing_extra
from netkit.config import options_from_texts
from netkit.errors import ConfigError

__all__ = ["serve"]


def serve(named: Mapping[str, Any], assignments: Sequence[str]) -> None:
    """Run until SIGINT or SIGTERM. `assignments` are "NAME=VALUE" for any further option of MockGPU."""
    try:
        from netkit.testing.mock_gpu import MockGPU, Options
    except ModuleNotFoundError as error:
        raise missing_extra("mock-gpu", error, "testing") from error
    texts = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator:
            raise ConfigError(f"--option {assignment}: must be NAME=VALUE")
        texts[name.strip().replace("-", "_")] = text
    options = {**named, **options_from_texts(Options, texts, source="--option")}
    leave = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: leave.set())
    try:
        server = MockGPU(**options)
    except ValueError as error:
        raise ConfigError(f"mock-gpu: {error}") from error
    with server:
        print(f"mock GPU at {server.url}", flush=True)
        if named["tls"]:
            print(f"its certificate authority: {server.ca_file}", flush=True)
        print(
            "try POST /v1/embeddings, /v1/chat/completions, /embed; GET /stats, /metrics. Ctrl+C stops it.",
            flush=True,
        )
        leave.wait()
