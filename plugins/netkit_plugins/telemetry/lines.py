"""JSON lines: one for each call, when it is over.

Rules of this file:

- A line is written in one step, so that threads and processes that share a file do not mix theirs.
- No query, no header, no body: method, origin and path, and numbers.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from netkit import Request, Response
from netkit.errors import BodyClosed, ConfigError
from netkit.plugins import Context
from netkit.redaction import safe_url
from netkit_plugins.telemetry.kinds import error_type

__all__ = ["LineWatcher"]

_encode = msgspec.json.Encoder().encode


class LineWatcher:
    def __init__(self, target: str, context: Context) -> None:
        self._write = _writer(target)
        self._stack = context.stack

    def begin(self, request: Request) -> _Line:
        return _Line(self._write, self._stack, request)


class _Line:
    def __init__(self, write: Callable[[str], None], stack: str, request: Request) -> None:
        self._write = write
        self._stack = stack
        self._request = request
        self._attempts = 0
        self._began = time.time()
        self._started = time.monotonic()
        self._head: float | None = None

    def answered(self, response: Response) -> None:
        self._head = time.monotonic() - self._started

    def attempt(self, request: Request) -> tuple[Request, Callable[[Response | None, BaseException | None], None]]:
        self._attempts += 1
        return request, _nothing

    def end(self, response: Response | None, error: BaseException | None) -> None:
        line: dict[str, Any] = {
            "time": round(self._began, 6),
            "stack": self._stack,
            "method": self._request.method,
            "url": safe_url(self._request.url).partition("?")[0],
            "status": None if response is None else response.status,
            "error": None if error is None or isinstance(error, BodyClosed) else error_type(error),
            "closed_early": isinstance(error, BodyClosed),
            "attempts": self._attempts,
            "seconds": round(time.monotonic() - self._started, 6),
            "head_seconds": None if self._head is None else round(self._head, 6),
            "http_version": None if response is None else response.extensions.get("http_version"),
        }
        if response is not None:
            line |= {key: True for key in ("cached", "coalesced", "batch") if response.extensions.get(key)}
        self._write(_encode(line).decode())


def _nothing(response: Response | None, error: BaseException | None) -> None:
    pass


def _writer(target: str) -> Callable[[str], None]:
    if target == "logging":
        return logging.getLogger("netkit.calls").info
    if target in ("stderr", "stdout"):
        # Looked up each time: programs and tests replace these.
        return lambda line: _to_stream(getattr(sys, target), line)
    return _appender(target)


def _to_stream(stream: Any, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


@lru_cache(64)
def _appender(path: str) -> Callable[[str], None]:
    """One handler for each file of a process; it opens the file at its first line, and again after it was moved."""
    from logging.handlers import WatchedFileHandler

    try:
        open(path, "a", encoding="utf-8").close()  # said now, not at the first call
    except OSError as error:
        raise ConfigError(f"telemetry.log: {path}: {error.strerror}") from error
    handler = WatchedFileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(message)s"))

    def append(line: str) -> None:
        handler.handle(logging.LogRecord("netkit.calls", logging.INFO, "", 0, line, (), None))

    return append
