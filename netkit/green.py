"""Whether threads are green here: gevent or eventlet has put its own in place of the system's.

Green threads cannot wait for an event loop in a thread of its own, which is what HTTP/2 needs under the synchronous
stacks: it would run as one of them, and block them all. So those stacks stay with their own HTTP/1.1 there, which
gevent and eventlet make green as they do without netkit.

Example::

    if threads_are_green():
        return None  # the stack's own transport
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["threads_are_green"]


def threads_are_green() -> bool:
    """Asked for each request: a program may patch after netkit was imported. Imports nothing, never raises."""
    modules = sys.modules
    if "gevent.monkey" not in modules and "eventlet.patcher" not in modules:
        return False
    gevent: Any = modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("threading"):
        return True
    eventlet: Any = modules.get("eventlet.patcher")
    return eventlet is not None and bool(eventlet.is_monkey_patched("thread"))
