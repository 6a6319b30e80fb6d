"""Every built-in plugin and the example of a third party's on every stack; "bare" is the adapter without plugins."""

from __future__ import annotations

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


@pytest.mark.parametrize("case", conformance.cases(SUBJECTS, http=("1.1", "2")), ids=str)
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
