"""How a layer that lets calls in keeps a say in the attempts that a layer further in makes of them.

A limiter stands outside of `retry`: it sees one call, however often that is sent. It leaves an `Admission` in
`request.extensions["admission"]`, and whoever sends a request once more asks it first.

Example::

    admission = request.extensions.get("admission")
    try:
        response = await send(request)
    except TransportError as error:
        if admission is not None:
            await admission.failed(None, error)      # this attempt is over, and nobody above will hear of it
    …                                                # wait as long as your own policy wants
    if admission is not None:
        await admission.again()                      # waits its turn, and pays for one more
    response = await send(request)

Rules of this file:

- Each attempt is told once: to `failed` by the layer that gave it up, else to the outer layer as the call's outcome.
- Whatever `again` took is given back by the outer layer when the call ends, also when it was cancelled.
- A layer with several admissions above it finds the innermost one, which asks the next one outwards by itself.
"""

from __future__ import annotations

from typing import Protocol

from netkit.errors import TransportError
from netkit.messages import Response

__all__ = ["Admission"]


class Admission(Protocol):
    """One call's right to be sent."""

    async def failed(self, response: Response | None, error: TransportError | None) -> None:
        """An attempt ended so, and its outcome will not be returned or raised; give back what it held.

        `response` is the answer that is about to be discarded, `error` the failure, both None for an attempt that
        was given up (the slower of two). Call it before the response is discarded.
        """
        ...

    async def again(self) -> None:
        """Wait until one more attempt may be sent, and take what it costs. Raises as the outer layer does
        (`PoolTimeout`, `DeadlineExceeded`); then nothing was taken and nothing may be sent."""
        ...
