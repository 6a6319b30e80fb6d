"""The mock GPU as a process of its own: `python -m netkit.testing.mock_gpu --port 8443 --launch-ms 5`.

Prints one JSON line with `url`, `ca_file`, `client_file`, `pid` when it accepts connections; ends on SIGINT, SIGTERM.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import os
import signal
import sys
import threading
import types
import typing
from collections.abc import Sequence
from itertools import pairwise
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


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m netkit.testing.mock_gpu") -> None:
    """Every scalar field of Options is a flag: `--max-batch 64`, `--no-tls`, `--hostnames a.test,b.test`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="A mock GPU server. Prints one JSON line with `url`, `ca_file`, `client_file`, `pid` when it "
        "accepts connections; ends on SIGINT, SIGTERM. Times named -ms are milliseconds, the others seconds.",
        usage=f"{prog} [--port PORT] [--launch-ms MS] [--gpus N] [--no-tls] …",
    )
    hints = typing.get_type_hints(Options)
    said = _said_of_fields()
    for field in dataclasses.fields(Options):
        flag = "--" + field.name.replace("_", "-")
        convert = _converter(hints[field.name])
        if convert is bool:
            parser.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=field.default, help=_help(field, said)
            )
        elif field.name == "settings":
            parser.add_argument(flag, type=_settings, default={}, help="HTTP/2 SETTINGS by number: 3=100,4=65535")
        else:
            parser.add_argument(
                flag,
                type=convert,
                default=field.default,
                metavar=_shown(hints[field.name], convert),
                help=_help(field, said),
            )
    serve_forever(**vars(parser.parse_args(arguments)))


def _said_of_fields() -> dict[str, str]:
    """What stands below each field of Options; nothing where its source is not at hand."""
    try:
        (body,) = ast.parse(inspect.getsource(Options)).body
    except OSError:
        return {}
    assert isinstance(body, ast.ClassDef)
    said = {}
    for field, text in pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            said[field.target.id] = str(ast.literal_eval(text.value)).replace("%", "%%")
    return said


def _help(field: dataclasses.Field[Any], said: dict[str, str]) -> str:
    """What is said of it, and its default."""
    default = ",".join(field.default) if isinstance(field.default, tuple) else str(field.default).lower()
    return f"{said.get(field.name, '')} ({default or 'none'})".strip()


def _shown(hint: Any, convert: Any) -> str:
    """The words that an option takes, or the kind of its value."""
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(map(str, typing.get_args(hint)))
    return {int: "N", float: "NUMBER", _names: "A,B"}.get(convert, "TEXT")


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
