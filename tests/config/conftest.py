"""A registry of plugins made for these tests, and a directory in which nothing is configured."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

import netkit.config._files as files
from netkit.hookspecs import hookimpl
from netkit.plugins import Registry


@dataclass(frozen=True)
class Retry:
    attempts: int = 3
    statuses: frozenset[int] = frozenset({429, 503})
    backoff_initial: float = 0.5
    backoff_max: float = 8.0
    jitter: Literal["full", "equal", "none"] = "full"
    respect_retry_after: bool = True
    pure: tuple[str, ...] = ("*/embeddings",)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("attempts must be at least 1")
        if self.backoff_max < self.backoff_initial:
            raise ValueError("backoff_max must not be below backoff_initial")


@dataclass(frozen=True)
class Pool:
    max_connections: int = 100
    max_connections_total: int | None = None
    max_idle: int | None = None
    idle_timeout: float | Literal["learn"] | None = "learn"
    tcp_keepalive: tuple[int, int, int] = (60, 15, 4)


@dataclass(frozen=True)
class Endpoint:
    url: str
    weight: float = 1.0
    headers: tuple[tuple[str, str], ...] = ()
    auth: str | None = None


@dataclass(frozen=True)
class Balance:
    endpoints: tuple[Endpoint, ...]
    policy: Literal["p2c-ewma", "round-robin"] = "p2c-ewma"


@dataclass(frozen=True)
class Cache:
    ttl: float = 3600.0
    storage: str = "memory"
    enabled: bool | Literal["auto"] = "auto"
    per: int | bool = 1
    note: str | None = None
    table: tuple[tuple[str, int], ...] = field(default=())


def _factory(options: Any, context: Any) -> Any:
    raise AssertionError("configuration must not build layers")


class Plugins:
    """One object that brings them all."""

    @hookimpl
    def netkit_register(self, register: Any) -> None:
        register("retry", _factory, options=Retry, implicit=Retry(attempts=2), summary="again")
        register("pool", _factory, options=Pool, kind="transport", implicit=Pool())
        register("balance", _factory, options=Balance)
        register("cache", _factory, options=Cache)
        register("third-party", _factory, options=Cache)
        register("second", _factory, options=Cache)
        register("wire", _factory, options=Cache, kind="transport")


@pytest.fixture
def known() -> Registry:
    registry = Registry(builtin={}, use_entry_points=False)
    registry.register(Plugins(), "netkit_test_plugins")
    return registry


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: below an empty netkit.toml, so that no file of the machine is found."""
    for name in list(os.environ):
        if name.startswith("NETKIT_"):
            monkeypatch.delenv(name)
    root = tmp_path / "root"
    (root / "project").mkdir(parents=True)
    (root / "netkit.toml").write_text("")
    monkeypatch.chdir(root / "project")
    monkeypatch.setattr(files, "_parsed", {})
    return root / "project"
