"""docs/retry.md and docs/limit.md: every option is shown, and what is shown is valid."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from netkit_plugins.limit import LimitOptions, LimitStats
from netkit_plugins.retry import RetryOptions, RetryStats

from netkit import events
from netkit.config import Config
from netkit.plugins import Registry

DOCS = Path(__file__).parents[2] / "docs"


def _tables(page: str) -> list[dict[str, object]]:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [tomllib.loads(block)["tool"]["netkit"] for block in blocks]


@pytest.mark.parametrize("page", ["retry.md", "limit.md"])
def test_what_is_shown_is_valid(page: str) -> None:
    for table in _tables(page):
        Config.from_mapping(table, page).check(Registry(use_entry_points=False))


def test_the_options_of_retry_are_shown_with_their_defaults() -> None:
    shown = _tables("retry.md")[0]["retry"]
    assert isinstance(shown, dict)
    assert shown.keys() == RetryOptions.__dataclass_fields__.keys() - {"pure"}
    for name, value in shown.items():
        default = getattr(RetryOptions(), name)
        assert (tuple(value) if isinstance(value, list) else value) == default, name


def test_the_options_of_limit_are_shown() -> None:
    shown = _tables("limit.md")[0]["limit"]
    assert isinstance(shown, dict)
    assert shown.keys() == LimitOptions.__dataclass_fields__.keys()
    for name in ("max_queue", "priority", "storage"):
        assert shown[name] == getattr(LimitOptions(), name)


@pytest.mark.parametrize(("page", "stats"), [("retry.md", RetryStats), ("limit.md", LimitStats)])
def test_statistics_and_events_exist(page: str, stats: type) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    fields = re.search(r"\.(?:retry|limit)\s+# (.*)", text)
    assert fields is not None
    assert fields[1].split(", ") == list(stats.__struct_fields__)  # type: ignore[attr-defined]
    names = re.search(r"print\)\s+# (.*)", text)
    assert names is not None
    assert all(name in events.__all__ for name in names[1].split(", "))
