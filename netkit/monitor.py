"""A look into a running process: a local socket that answers with what its sessions count.

`netkit top` reads it. A process opens it when `telemetry.top` is on, or under `netkit run --top`.

Rules of this file:

- The socket lies in a folder that only its user can enter; nothing can be asked or changed through it, only read.
- One thread per process, a daemon; a forked child opens a socket of its own.
- An answer holds numbers, stacks and the names of circuits (an address; a path where `breaker.scope` is "route"): no
  query, credential, header or body.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from netkit import fork, process
from netkit.errors import NetkitError

__all__ = ["look", "running", "serve", "snapshot", "stop"]

LARGEST: Final = 4 * 2**20
TIMEOUT: Final = 2.0
PAUSE: Final = 0.2

log = logging.getLogger("netkit")


def snapshot() -> dict[str, Any]:
    """What all sessions of this process count now, by stack, in plain types."""
    stacks: dict[str, Any] = {
        stack: msgspec.to_builtins(total) | {"live": []} for stack, total in process.totals().items()
    }
    for edge in process.edges():
        stacks.setdefault(edge.stack, {"live": []})["live"].append(_plain(edge.stats()))
    return {"pid": os.getpid(), "program": Path(sys.argv[0] or "python").name, "stacks": stacks}


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def _folder() -> Path:
    """Where the sockets of this user lie; made if it is not there. Raises NetkitError if it cannot be made, or if
    others could enter it."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    if not base.is_dir():
        base = Path(tempfile.gettempdir())  # su and cron hand on the folder of a login that is over
    path = base / f"netkit-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise NetkitError(f"{path} cannot be made: {error.strerror}; point XDG_RUNTIME_DIR elsewhere") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise NetkitError(f"{path} can be entered by others: remove it, or point XDG_RUNTIME_DIR elsewhere")
    return path


class _Server:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._path: Path | None = None
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        was_open, self._socket, self._path = self._socket, None, None
        if was_open is not None:
            was_open.close()
            with contextlib.suppress(OSError, NetkitError):
                self.open()

    def open(self) -> Path:
        with self._lock:
            if self._path is not None:
                return self._path
            if not hasattr(socket, "AF_UNIX"):
                raise NetkitError("netkit top needs unix sockets, which this system does not have")
            path = _folder() / f"{os.getpid()}.sock"
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                path.unlink(missing_ok=True)
                made.bind(str(path))
                made.listen(8)
            except OSError as error:
                made.close()
                raise NetkitError(f"netkit top: no socket at {path}: {error.strerror or error}") from error
            self._socket, self._path = made, path
        threading.Thread(target=self._run, args=(made,), name="netkit-monitor", daemon=True).start()
        return path

    def close(self) -> None:
        with self._lock:
            made, path, self._socket, self._path = self._socket, self._path, None, None
        if made is not None:
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
            made.close()
        if path is not None:
            path.unlink(missing_ok=True)

    def _run(self, listening: socket.socket) -> None:
        while True:
            try:
                asking, _ = listening.accept()
            except OSError:
                if self._socket is not listening:
                    return
                time.sleep(PAUSE)  # too many open files, perhaps: that passes
                continue
            with asking:
                try:
                    asking.settimeout(TIMEOUT)
                    asking.sendall(msgspec.json.encode(snapshot()))
                except OSError:
                    pass  # whoever asked is gone, or does not read
                except Exception:
                    log.exception("netkit: nothing could be told to netkit top")


_server: Final = _Server()


def serve() -> Path:
    """Let `netkit top` look at this process from now on. Gives the socket's path; again changes nothing."""
    import atexit

    path = _server.open()
    atexit.unregister(_server.close)
    atexit.register(_server.close)
    return path


def stop() -> None:
    """Close the socket and remove it."""
    _server.close()


def running() -> list[int]:
    """Processes of this user that listen, also one that is too busy to answer now. Sockets that nobody listens to any
    more are removed."""
    found = []
    for path in sorted(_folder().glob("*.sock")):
        if not path.stem.isdecimal():
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(TIMEOUT)
            try:
                asking.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                path.unlink(missing_ok=True)
                continue
            except OSError:
                pass  # its queue is full: it is there
        found.append(int(path.stem))
    return found


def look(pid: int) -> dict[str, Any]:
    """The `snapshot()` of another process. Raises OSError where it cannot be reached."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(TIMEOUT)
        asking.connect(str(_folder() / f"{pid}.sock"))
        parts: list[bytes] = []
        while (part := asking.recv(65536)) and sum(map(len, parts)) < LARGEST:
            parts.append(part)
    answer: dict[str, Any] = msgspec.json.decode(b"".join(parts))
    return answer
