"""`make docs`: every page is built, and a warning would be an error."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    target = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [sys.executable, "-m", "docs.build", str(target)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return target


def test_every_page_is_there_without_a_warning(built: Path) -> None:
    sources = {page.relative_to(REPOSITORY / "docs").with_suffix("") for page in (REPOSITORY / "docs").rglob("*.md")}
    pages = {page.relative_to(built).with_suffix("") for page in built.rglob("*.html")}
    assert sources <= pages


def test_make_docs_is_that_command() -> None:
    assert re.search(r"^docs:.*\n\t.*-m docs\.build$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def test_pages_lead_to_pages(built: Path) -> None:
    dead = [
        (page.name, link)
        for page in built.rglob("*.html")
        for link in re.findall(r'href="([^"#:?]+\.html)', page.read_text(encoding="utf-8"))
        if not (page.parent / link).resolve().exists()
    ]
    assert dead == []
