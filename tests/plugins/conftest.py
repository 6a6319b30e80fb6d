"""What tests of several plugins need: a real redis-server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from netkit import shared


@pytest.fixture
def redis_server() -> Iterator[object]:
    """A `tests.redis_server.RedisServer`, running and empty."""
    pytest.importorskip("redis")
    from tests.redis_server import RedisServer, is_installed

    if not is_installed():
        pytest.skip("redis-server is not installed")
    # Not tmp_path: the path of a socket has room for some hundred characters only.
    with tempfile.TemporaryDirectory(prefix="nk-redis-") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(autouse=True)
def _warnings_anew() -> None:
    """Each test has its one warning about Redis."""
    shared._warned.clear()
