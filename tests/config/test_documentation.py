"""What the pages say of settings is so: examples, the error that is shown, and each plugin's table of options."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from docs import reference
from netkit.config import Config
from netkit.errors import ConfigError
from netkit.plugins import DEFAULT_PLUGINS, Registry

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "configuration.md").read_text(encoding="utf-8")


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


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert reference.rewritten(text) == text, "run: python -m docs.reference"


@pytest.mark.parametrize("name", DEFAULT_PLUGINS)
def test_every_plugin_has_its_table_on_a_page(name: str) -> None:
    page = DOCS / f"{reference.PAGES.get(name, name)}.md"
    assert f"<!-- options: {name} -->" in page.read_text(encoding="utf-8")


def test_an_option_without_a_meaning_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Options:
        """Of nothing.

        one, two: what both
            say.
        """

        one: int = 1
        two: int = 2
        three: int = 3

    with pytest.raises(ValueError, match="no docstring says what three means"):
        reference.meanings(Options)
