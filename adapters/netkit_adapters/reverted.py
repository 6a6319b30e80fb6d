"""Methods of netkit's classes on sessions that went back to their stack's class.

`netkit.uninstall()` gives a session its own class back, while other threads use it, or a `with` block, or a coroutine
that has not begun, holds a method that was found before. Such a method runs on a session that is none of netkit's.

Rules of this file:

- A method looks up all that it needs of its class at once, first of all, in one `try`: that costs nothing. Where it
  fails with one of `REVERTED`, the stack's own method does the call.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Final

__all__ = ["REVERTED", "native"]

REVERTED: Final = (AttributeError, TypeError)
"""What `self._netkit_…` and `super()` raise then."""


def native(session: Any, face: type, base: type) -> Any:
    """The methods of `base`, the stack's class, for a session that is no `face`, netkit's class, any more. Call it
    where `REVERTED` is handled: what else may have raised that goes on."""
    if isinstance(session, face):
        raise
    return _Native(session, base)


class _Native:
    """`super()` for a session that is no longer of the class that asks."""

    def __init__(self, session: Any, base: type) -> None:
        self._session = session
        self._base = base

    def __getattr__(self, name: str) -> Any:
        return MethodType(getattr(self._base, name), self._session)

    def __repr__(self) -> str:
        return repr(self._session)
