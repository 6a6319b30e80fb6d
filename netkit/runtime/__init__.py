"""What a layer may wait for: sleep, events, offloaded work and spawned work, in threads or in an event loop.

Rules of this package:

- A layer waits only through its `Runtime`; that is what lets one function run under every stack.
- `Event.set()` may be called from any thread and any loop: limits and single-flight span them.
- Nothing here holds a lock while it waits.
"""

from __future__ import annotations

from netkit.runtime._asyncio import Asyncio
from netkit.runtime._protocol import Event, Runtime, Spawned
from netkit.runtime._scripted import Scripted, ScriptedTask
from netkit.runtime._threads import Threads, checkpoint, interruptible, time_left

__all__ = [
    "Asyncio",
    "Event",
    "Runtime",
    "Scripted",
    "ScriptedTask",
    "Spawned",
    "Threads",
    "checkpoint",
    "interruptible",
    "time_left",
]
