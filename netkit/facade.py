"""`attach`, `detach`, `stats`, `listen`: one function each for the sessions of every stack.

An adapter is found by the module of the object's classes and imported only then, so `import netkit` imports no
HTTP stack.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import os

    from netkit.config import Config, PluginSettings
    from netkit.edge import Edge
    from netkit.stats import Stats

__all__ = ["attach", "detach", "edge_of", "listen", "stats"]

T = TypeVar("T")

ADAPTERS: Final = {
    "requests": "netkit_adapters.requests",
    "httpx": "netkit_adapters.httpx",
    "httpx2": "netkit_adapters.httpx2",
    "aiohttp": "netkit_adapters.aiohttp",
}
"""Top-level package of a session's class → the adapter that knows it."""


def attach(
    obj: T,
    *,
    plugins: Mapping[str, PluginSettings] | None = None,
    config: Config | str | os.PathLike[str] | None = None,
) -> T:
    """Put netkit into an existing session or client, and return it.

    Example::

        session = netkit.attach(legacy.make_session(), plugins={"retry": {"attempts": 5}})

    Takes a requests.Session, an httpx or httpx2 Client or AsyncClient, or an aiohttp.ClientSession, subclasses
    included. Attaching again with the same arguments changes nothing; with others it replaces them. Copies and
    pickles of the object do not carry netkit along. Raises TypeError for anything else, ConfigError for wrong
    settings.
    """
    result: T = _adapter(obj).attach(obj, plugins=plugins, config=config)
    return result


def detach(obj: Any) -> None:
    """Undo `attach`: the object's own attributes are back. Does nothing to an object without netkit; raises TypeError
    for one of netkit's own classes, which cannot be without."""
    _adapter(obj).detach(obj)


def stats(obj: Any) -> Stats:
    """A frozen snapshot of what netkit counts for a session: `stats(session).pool.in_use`, `.latency.p99`, …

    Times are seconds, totals never fall. Raises TypeError for an object without netkit.
    """
    return edge_of(obj).stats()


def listen(obj: Any, callback: Callable[[Any], None]) -> Callable[[], None]:
    """Call `callback(event)` for each event of this session, in the thread or task where it happens.

    Events are frozen (see `netkit.events`). What the callback raises is logged and changes nothing. Returns a
    function that removes it.
    """
    return edge_of(obj).emit.add(callback)


def edge_of(obj: Any) -> Edge:
    """The netkit side of a session; TypeError when it has none."""
    edge: Edge = _adapter(obj).edge_of(obj)
    return edge


def _adapter(obj: Any) -> Any:
    for kind in type(obj).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in ADAPTERS and _is_session(kind):
            return importlib.import_module(ADAPTERS[package])
    raise TypeError(f"netkit knows no HTTP session of type {type(obj).__module__}.{type(obj).__qualname__}")


def _is_session(kind: type) -> bool:
    return kind.__name__ in ("Session", "Client", "AsyncClient", "ClientSession")
