"""netkit: plugin-based middleware for requests, httpx, httpx2 and aiohttp.

Example::

    import netkit

    session = netkit.Session()                      # a requests.Session
    client = netkit.AsyncClient()                   # an httpx.AsyncClient
    netkit.attach(existing_session)                 # anything you have already
    print(netkit.stats(session).latency.p99)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from netkit import errors, events
from netkit.config import Config
from netkit.edge import overrides
from netkit.errors import (
    BatchError,
    CircuitOpen,
    ConfigError,
    DeadlineExceeded,
    ImageError,
    NetkitError,
    PluginError,
    PoolTimeout,
    QueueFull,
    TransportError,
    Verdict,
)
from netkit.facade import attach, detach, listen, stats
from netkit.flow import Layer, Send
from netkit.headers import Headers
from netkit.hookspecs import hookimpl
from netkit.mapping import map
from netkit.messages import Body, Request, Response, Timeout
from netkit.patching import install, uninstall
from netkit.plugins import Context
from netkit.runtime import Runtime
from netkit.stats import Stats

if TYPE_CHECKING:
    from netkit_adapters.aiohttp import ClientSession
    from netkit_adapters.httpx import AsyncClient, Client
    from netkit_adapters.requests import Session
    from netkit_plugins.image import preprocess

    from netkit import aiohttp, httpx, httpx2, requests, testing

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "BatchError",
    "Body",
    "CircuitOpen",
    "Client",
    "ClientSession",
    "Config",
    "ConfigError",
    "Context",
    "DeadlineExceeded",
    "Headers",
    "ImageError",
    "Layer",
    "NetkitError",
    "PluginError",
    "PoolTimeout",
    "QueueFull",
    "Request",
    "Response",
    "Runtime",
    "Send",
    "Session",
    "Stats",
    "Timeout",
    "TransportError",
    "Verdict",
    "aiohttp",
    "attach",
    "detach",
    "errors",
    "events",
    "hookimpl",
    "httpx",
    "httpx2",
    "install",
    "listen",
    "map",
    "overrides",
    "preprocess",
    "requests",
    "stats",
    "testing",
    "uninstall",
]

_FACES: Final = {
    "Session": ("netkit_adapters.requests", "requests", "requests"),
    "Client": ("netkit_adapters.httpx", "httpx", "httpx"),
    "AsyncClient": ("netkit_adapters.httpx", "httpx", "httpx"),
    "ClientSession": ("netkit_adapters.aiohttp", "aiohttp", "aiohttp"),
    "preprocess": ("netkit_plugins.image", "PIL", "image"),
}
"""Module, the package that it needs, and the extra that brings it. Each is imported when first used: a project needs
only what it has."""

_MODULES: Final = frozenset({"aiohttp", "httpx", "httpx2", "requests", "testing"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"netkit.{name}")
    if name not in _FACES:
        raise AttributeError(f"module 'netkit' has no attribute {name!r}")
    module, package, extra = _FACES[name]
    try:
        face = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"netkit.{name} needs {package}: install netkit-http[{extra}]", name=error.name
        ) from error
    globals()[name] = face
    return face


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
