"""Every built-in plugin and the example of a third party's on every stack; "bare" is the adapter without plugins."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

from netkit.plugins import DEFAULT_PLUGINS
from netkit.testing import conformance

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    # Retries wait next to nothing, and the budget never refuses one: the rules are about what passes, not about pace.
    "retry": {"backoff_initial": 0.001, "backoff_max": 0.002, "budget_min_per_second": 1000.0},
    # Fewer places than some rules have callers, and a rate that none of them reaches.
    "limit": {"concurrency": 8, "requests_per_second": 5000.0, "tokens_per_minute": 1e9, "acquire_timeout": 10.0},
    # Every call that may be hedged is raced from the start, and none takes long enough for a second copy.
    "hedge": {"delay": 50.0, "max_extra_load": 1.0},
    # One replica, the server itself: calls go where they would have gone, as others.
    "balance": {"endpoints": ["{url}"]},
    # Fewer slots than some rules have callers: they queue, and wait longer than the default second for their turn.
    # Everything that can be told, to a logger that nobody reads and to OpenTelemetry's stand-ins.
    "telemetry": {"otel": True, "log": "logging", "prometheus": True},
    # Limits that no rule reaches: what they put around calls and bodies is there all the same.
    "deadline": {"total": 60.0, "first_byte": 50.0, "between_events": 40.0},
    "pool": {"max_connections": 8, "acquire_timeout": 10.0},
}

SUBJECTS: Final = [conformance.Subject(None)] + [
    conformance.Subject(name, OPTIONS.get(name, {})) for name in DEFAULT_PLUGINS
]

ALWAYS_ON: Final = frozenset({None, "retry", "pool", "http2"})
ENGINES: Final = ("requests", "httpx-async", "aiohttp")
"""One face for each way to the HTTP/2 engine: through the portal, from tasks by neutral messages, from tasks by
native ones. The others take the same ways with the same code."""


def matrix() -> list[conformance.Case]:
    """Every plugin on every face. Over HTTP/2, plugins that are off by default run on one face for each way to the
    engine, and on all of them with NETKIT_CONFORMANCE=full (`make conformance`)."""
    if os.environ.get("NETKIT_CONFORMANCE") == "full":
        return conformance.cases(SUBJECTS, http=("1.1", "2"))
    found = conformance.cases(SUBJECTS)
    for subject in SUBJECTS:
        stacks = None if subject.name in ALWAYS_ON else ENGINES
        over_http2 = conformance.cases(subject, http=("2",), stacks=stacks)
        found += [case for case in over_http2 if case.face is not None]
    return found


@pytest.mark.parametrize("case", matrix(), ids=str)
def test_conformance(case: conformance.Case) -> None:
    case.run()


@pytest.mark.parametrize("case", conformance.cases("acme_trace"), ids=str)
def test_conformance_of_the_example(case: conformance.Case) -> None:
    case.run()


def test_every_face_is_covered() -> None:
    assert [face.name for face in conformance.FACES if conformance.is_installed(face)] == [
        "requests",
        "httpx",
        "httpx-async",
        "httpx2",
        "httpx2-async",
        "aiohttp",
    ]
