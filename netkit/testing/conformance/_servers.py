"""The servers that a run of the kit needs, started when first asked for and shared by all of its cases."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Self

from netkit.testing.conformance._proxy import Proxy
from netkit.testing.mock_gpu import MockGPU

__all__ = ["Servers", "closed_port"]


class Servers:
    """Mock GPUs by what they speak, and one proxy. A context manager; `shared()` gives the process's own.

    Example::

        with Servers() as servers:
            servers.get("1.1", tls=True).url
    """

    _shared: Servers | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpus: dict[tuple[str, bool, str], MockGPU] = {}
        self._proxy: Proxy | None = None
        self._forks: subprocess.Popen[str] | None = None
        self._numbers = itertools.count(1)

    @classmethod
    def shared(cls) -> Servers:
        """One for the whole test run; the pytest plugin closes it at the end."""
        if cls._shared is None:
            cls._shared = Servers()
        return cls._shared

    @classmethod
    def close_shared(cls) -> None:
        """Close what `shared()` started, if it did."""
        if cls._shared is not None:
            cls._shared.close()
            cls._shared = None

    def get(self, http: str, *, tls: bool, role: str = "main") -> MockGPU:
        """A running server; another `role` is another origin."""
        with self._lock:
            key = (http, tls, role)
            gpu = self._gpus.get(key)
            if gpu is None:
                gpu = MockGPU(
                    http=http, tls=tls, launch_ms=0.0, per_item_ms=0.0, client_certificate="optional" if tls else "no"
                )
                gpu.start()
                self._gpus[key] = gpu
            return gpu

    @property
    def proxy(self) -> Proxy:
        with self._lock:
            if self._proxy is None:
                self._proxy = Proxy()
            return self._proxy

    def fork_probe(self, job: dict[str, Any]) -> dict[str, Any]:
        """What `_fork_probe` says about a job."""
        with self._lock:
            if self._forks is None:
                self._forks = subprocess.Popen(
                    [sys.executable, "-m", "netkit.testing.conformance._fork_probe"],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            assert self._forks.stdin is not None
            assert self._forks.stdout is not None
            self._forks.stdin.write(json.dumps(job) + "\n")
            self._forks.stdin.flush()
            said: dict[str, Any] = json.loads(self._forks.stdout.readline())
            return said

    def number(self) -> int:
        """One that no other case of this run has."""
        return next(self._numbers)

    def close(self) -> None:
        """Stop all of them."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        forks, self._forks = self._forks, None
        if forks is not None:
            forks.communicate(timeout=10)
        gpus, self._gpus = self._gpus, {}
        for gpu in gpus.values():
            gpu.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def closed_port() -> int:
    """A loopback port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: Any = probe.getsockname()[1]
    return int(port)
