"""One HTTP stack of the httpx family, by its classes: httpx and httpx2 differ in nothing else that matters here.

Rules of this file:

- Originals are bound once, at import, before anything can be patched in their place.
- After `httpx2.alias_httpx()` the module called httpx is httpx2: a stack is told by its classes, not by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from netkit.errors import FailureKind, Verdict

__all__ = ["Stack"]


@dataclass(frozen=True, eq=False)
class Stack:
    """The native names that the shared implementation uses; `faces` holds the derived exceptions by netkit's own."""

    name: str
    native: Any
    client: type
    async_client: type
    byte_stream: type
    core: Any
    failures: dict[type, tuple[FailureKind, Verdict]]
    passed_on: tuple[type[Exception], ...]
    """Errors of the caller, raised before anything was sent: no failure of an exchange."""
    iterator_stream: type | None
    multipart_stream: type | None
    faces: dict[type, type]
    kinds: dict[FailureKind, type]

    @classmethod
    def of(cls, native: ModuleType, faces: dict[type, type], kinds: dict[FailureKind, type]) -> Stack:
        module: Any = native
        name = module.Client.__module__.partition(".")[0]
        return cls(
            name=name,
            native=module,
            client=module.Client,
            async_client=module.AsyncClient,
            byte_stream=module.ByteStream,
            core=import_module("httpcore" if name == "httpx" else "httpcore2"),
            failures=_failures(module),
            passed_on=(module.UnsupportedProtocol, module.LocalProtocolError),
            iterator_stream=_private(f"{name}._content", "IteratorByteStream"),
            multipart_stream=_private(f"{name}._multipart", "MultipartStream"),
            faces=faces,
            kinds=kinds,
        )


def _private(module: str, name: str) -> type | None:
    """A class that the stack does not export; None where it is gone: its bodies then count as one-shot."""
    try:
        found: type | None = getattr(import_module(module), name, None)
    except ImportError:
        return None
    return found


def _failures(module: Any) -> dict[type, tuple[FailureKind, Verdict]]:
    kind, verdict = FailureKind, Verdict
    return {
        module.PoolTimeout: (kind.POOL, verdict.NOT_SENT),
        module.ConnectTimeout: (kind.CONNECT_TIMEOUT, verdict.NOT_SENT),
        module.ConnectError: (kind.CONNECT, verdict.NOT_SENT),
        module.ProxyError: (kind.PROXY, verdict.NOT_SENT),
        module.WriteTimeout: (kind.WRITE_TIMEOUT, verdict.AMBIGUOUS),
        module.WriteError: (kind.WRITE, verdict.AMBIGUOUS),
        module.ReadTimeout: (kind.READ_TIMEOUT, verdict.AMBIGUOUS),
        module.ReadError: (kind.RESET, verdict.AMBIGUOUS),
        module.RemoteProtocolError: (kind.PROTOCOL, verdict.AMBIGUOUS),
        module.TimeoutException: (kind.READ_TIMEOUT, verdict.AMBIGUOUS),
        module.NetworkError: (kind.RESET, verdict.AMBIGUOUS),
        module.TransportError: (kind.OTHER, verdict.AMBIGUOUS),
    }
