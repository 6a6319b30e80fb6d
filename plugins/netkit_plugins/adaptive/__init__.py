"""Settings that find themselves: tried against what was, kept only where that won, put back otherwise.

Why not each plugin by itself: whether a larger batch pays shows in the calls that all layers together serve, and two
controllers that move at the same time measure each other. Why not a formula: what a server gains from a batch or a
connection is not known here, only measurable.

Example::

    [tool.netkit]
    batch = { max_items = 4 }
    adaptive = { knobs = ["batch.max_items"], bounds = { "batch.max_items" = [4, 64] } }

- One knob at a time. The old and the new value take turns in windows of `window` seconds (new old old new …), so that
  a load that rises or falls meanwhile meets both alike.
- Kept only if calls completed per second, or the wait for an answer's head, are better by 3 % and by a rank test
  (H. B. Mann, D. R. Whitney, 1947) at `significance`. Failures, 429, 503, or a P99 that is worse by a quarter, veto.
- A trial that cannot win any more ends early, and each that did not win makes the pause before the next one longer.
- Time without calls does not count, and a window with less than `min_calls` calls says nothing.
- No thread, no task: decisions are made in callers' calls, between two of them.

Every step is logged (`netkit.adaptive`), told as `KnobMoved` and counted in `netkit.stats(session).adaptive`.

Order: right inside telemetry, around everything that it moves: it measures what callers get, waits included.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.adaptive.layer import AdaptiveLayer, AdaptiveStats, KnobStats
from netkit_plugins.adaptive.options import AdaptiveOptions

__all__ = ["AdaptiveLayer", "AdaptiveOptions", "AdaptiveStats", "KnobStats", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "adaptive",
        AdaptiveLayer,
        options=AdaptiveOptions,
        summary="Moves batch, pool, limit and retry settings where a measured trial shows a significant win",
    )
