"""A real redis-server for tests, on a socket of its own in a temporary directory."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

__all__ = ["RedisServer", "is_installed"]


def is_installed() -> bool:
    return shutil.which("redis-server") is not None


class RedisServer:
    """Runs from `start()` to `stop()`; may be started again in the same place. `url` is what netkit is given."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "redis.sock"
        self.url = f"unix://{self.socket}?db=0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"],
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        patient = Retry(ConstantBackoff(0.01), 1000, supported_errors=(redis.ConnectionError,))
        with redis.Redis.from_url(self.url, retry=patient) as client:
            client.ping()

    def client(self) -> redis.Redis:
        """A client of the test's own; the test closes it."""
        return redis.Redis.from_url(self.url)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Take connections, answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
