"""What belongs to one call of the user's, over the hops that it takes: redirects, legs of authentication.

A chain runs once for each hop. A layer that keeps something for the whole call puts it into
`request.extensions["hops"]()`: a dict, the same one at each hop of a call.
"""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["Hops"]


class Hops(list[Any]):
    """Travels with a stack's own request and the requests that follow from it. `first` is the request that began the
    call: met again, it begins another one.

    To the stack it is an empty list; pickled or copied it is one.
    """

    def __init__(self, first: Any) -> None:
        super().__init__()
        self._first = weakref.ref(first)
        self.kept: dict[str, Any] = {}

    def began_with(self, request: Any) -> bool:
        return self._first() is request

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, ()

    def __repr__(self) -> str:
        return f"<Hops {sorted(self.kept)}>"
