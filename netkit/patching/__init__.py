"""`install` and `uninstall`: netkit inside every session of this process, without a changed line.

Example::

    import netkit

    netkit.install()              # early; before or after `import requests`
    requests.get(url)             # netkit's, with the project's configuration
    netkit.uninstall()

What `install` reaches, for each of requests, httpx, httpx2 and aiohttp, as soon as it is imported:

- the stack's own names (`requests.Session`, `requests.get`, …), and the same objects under whatever name a loaded
  module keeps them (`from requests import Session`);
- classes that derive from the stack's: they derive from netkit's while it lasts;
- sessions and clients that are alive.

What Python does not let it reach: local variables, closures and default arguments that hold the original, and
containers of them. Those keep working natively.

Rules of this package:

- Everything that is changed is written down first and put back by `uninstall`, in reverse.
- Nothing here imports a stack: it waits until the program does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from netkit import fork
from netkit.patching._hook import ImportHook
from netkit.patching._stacks import STACKS, Patch

__all__ = ["install", "is_installed", "uninstall"]

_lock: Final = fork.lock(reentrant=True)
_patches: Final[dict[str, Patch]] = {}
_hook: ImportHook | None = None


def install() -> None:
    """Put netkit inside requests, httpx, httpx2 and aiohttp, process-wide. Doing it again changes nothing.

    Settings come from the project's configuration and the environment, as for `netkit.Session()`; what is wrong in
    them is raised here as `ConfigError`, before anything is changed. Forked children inherit it.
    """
    from netkit.config import Config
    from netkit.plugins import registry

    global _hook
    Config.default().check(registry())
    with _lock:
        if _hook is None:
            _hook = ImportHook(STACKS, _apply)
            sys.meta_path.insert(0, _hook)
        for stack in STACKS:
            if stack in sys.modules:
                _apply(stack)


def uninstall() -> None:
    """Put everything back that `install` changed. Sessions that netkit's classes made stay netkit's; those that were
    there before are as they were. Does nothing when netkit is not installed."""
    global _hook
    with _lock:
        if _hook is not None and _hook in sys.meta_path:
            sys.meta_path.remove(_hook)
        _hook = None
        for stack in list(_patches):
            _patches.pop(stack).undo()


def is_installed() -> bool:
    """Whether `install` is in force."""
    return _hook is not None


def _apply(stack: str) -> None:
    """Patch a stack that has been imported, once its adapter has been, too."""
    with _lock:
        # Its import may come back here, and be done with the stack.
        import_module(STACKS[stack])
        if _hook is not None and stack not in _patches:
            patch = Patch.of(stack)
            if patch is not None:
                _patches[stack] = patch
                patch.apply()
