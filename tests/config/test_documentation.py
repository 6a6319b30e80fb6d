"""What docs/configuration.md shows is valid with the real plugins, and its error is the real one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from netkit.config import Config
from netkit.errors import ConfigError
from netkit.plugins import Registry

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_examples_are_valid(place: Path) -> None:
    known = Registry(use_entry_points=False)
    assert blocks("toml")
    for text in blocks("toml"):
        assert "netkit" in tomllib.loads(text)["tool"]
        (place / "pyproject.toml").write_text(text)
        config = Config.load()
        config.check(known)
        url = "https://api.example.com/v1/chat/completions"
        names = [step.name for step in config.plan(known, routes=config.matching_routes(url)).steps]
        assert "retry" not in names
        assert "retry" in [step.name for step in config.plan(known).steps]


def test_the_error_is_the_real_one() -> None:
    (shown,) = blocks("text")
    config = Config.from_mapping({"retry": {"max_retry": 5}}, "/app/pyproject.toml")
    with pytest.raises(ConfigError) as caught:
        config.check(Registry(use_entry_points=False))
    assert str(caught.value).replace(": retry.", ": tool.netkit.retry.") == shown.strip()
