"""The mock GPU as a process of its own: `python -m netkit.testing.mock_gpu --port 8443 --launch-ms 5`.

Prints one JSON line with `url`, `ca_file`, `client_file`, `pid` when it accepts connections; ends on SIGINT, SIGTERM.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import threading
import types
import typing
from collections.abc import Sequence
from typing import Any

from .options import Options
from .server import MockGPU

__all__ = ["main", "serve_forever"]


def serve_forever(**options: Any) -> None:
    """Serve until SIGINT or SIGTERM; takes what MockGPU takes. Call it in the main thread."""
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with MockGPU(**options) as gpu:
            line = {"url": gpu.url, "ca_file": gpu.ca_file, "client_file": gpu.client_file, "pid": os.getpid()}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            while not stop.wait(1.0):
                continue
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> None:
    """Every scalar field of Options is a flag: `--max-batch 64`, `--no-tls`, `--hostnames a.test,b.test`."""
    parser = argparse.ArgumentParser(prog="python -m netkit.testing.mock_gpu", description=__doc__)
    hints = typing.get_type_hints(Options)
    for field in dataclasses.fields(Options):
        flag = "--" + field.name.replace("_", "-")
        convert = _converter(hints[field.name])
        if convert is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default)
        elif field.name == "settings":
            parser.add_argument(flag, type=_settings, default={}, help="for instance 3=100,4=65535")
        else:
            parser.add_argument(flag, type=convert, default=field.default)
    serve_forever(**vars(parser.parse_args(arguments)))


def _converter(hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return str
    if origin is tuple:
        return _names
    if origin in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _settings(text: str) -> dict[int, int]:
    return {int(key, 0): int(value, 0) for key, _, value in (part.partition("=") for part in text.split(",") if part)}
