"""What this process knows of each key: rates and the server's word, shared by all sessions with the same limits.

Ten sessions that keep to a limit each send ten times the limit: so the state is the process's, as with the budget of
`retry`. A layer whose runtime has a clock of its own (a test's) gets a store of its own.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final, TypeVar

from netkit_plugins.limit.rates import Rates, rates_of
from netkit_plugins.limit.word import Word

__all__ = ["Store", "forget_limits", "process_store"]

MAX_KEYS: Final = 4096
"""Keys remembered; beyond it the one that was not asked for longest starts anew: a bound on memory."""

K = TypeVar("K")
V = TypeVar("V")
RateOptions = tuple[float | None, float | None, int | None]


class Store:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._words: OrderedDict[str, Word] = OrderedDict()
        self._rates: OrderedDict[tuple[str, RateOptions], Rates | None] = OrderedDict()

    def word(self, key: str) -> Word:
        with self._lock:
            return _kept(self._words, key, self._words.get(key) or Word())

    def rates(self, key: str, options: RateOptions) -> Rates | None:
        with self._lock:
            known = self._rates.get((key, options))
            return _kept(self._rates, (key, options), known or rates_of(*options))

    def __repr__(self) -> str:
        return f"<Store keys={len(self._words)}>"


def _kept(table: OrderedDict[K, V], key: K, value: V) -> V:
    table[key] = value
    table.move_to_end(key)
    if len(table) > MAX_KEYS:
        table.popitem(last=False)
    return value


_store = Store()


def process_store() -> Store:
    """The one store of this process."""
    return _store


def forget_limits() -> None:
    """Start anew: in a forked child, and between tests."""
    global _store
    _store = Store()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=forget_limits)
