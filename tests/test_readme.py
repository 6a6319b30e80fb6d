"""What README.md says is so: its commands exist, its snippets run, its links and plugin table are true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import netkit
from netkit.plugins import DEFAULT_PLUGINS, Registry
from netkit.testing import MockGPU

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)", page.read_text(encoding="utf-8")))
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_python_snippets_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All of them in order, in one namespace, against a mock at the address that they name."""
    monkeypatch.chdir(tmp_path)
    with MockGPU(tls=False, launch_ms=0) as gpu:
        namespace: dict[str, Any] = {"legacy_session": __import__("requests").Session()}
        for snippet in blocks(ROOT / "README.md", "python"):
            exec(compile(snippet.replace("http://gpu:8000", gpu.url), "README.md", "exec"), namespace)
        assert [request.path for request in gpu.log.requests] == ["/v1/embeddings", "/health"]
        tenant = namespace["tenant"]
        assert tenant.__name__ == "tenant"
        for name in ("session", "legacy_session"):
            namespace[name].close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configuration_snippets_are_valid(page: Path) -> None:
    for snippet in blocks(page, "toml"):
        table = tomllib.loads(snippet).get("tool", {}).get("netkit")
        if table is not None and "netkit:invalid" not in snippet:
            netkit.Config.from_mapping(table, source=page.name).check(Registry())


def test_the_plugin_table_lists_every_plugin() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert named == set(DEFAULT_PLUGINS)
