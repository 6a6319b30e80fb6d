"""What README.md says is so: its commands exist, its snippets run, its links and plugin table are true."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

import netkit
from netkit.plugins import DEFAULT_LAYERS, DEFAULT_PLUGINS, TRANSPORTS, Registry
from netkit.testing import MockGPU

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def snippets(page: Path) -> list[tuple[str, str]]:
    """(kind, code) of a page's Python, in order: "python" is shown; "given" is what a page takes for granted, in a
    comment; a block after `<!-- not run: reason -->` is "left out"."""
    found = re.findall(
        r"<!-- given:\n(.*?)-->|(<!-- not run: \S.*? -->\s+)?^```python\n(.*?)^```",
        page.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return [("given", given) if given else ("left out" if out else "python", code) for given, out, code in found]


WITH_PYTHON = [page for page in PAGES if any(kind == "python" for kind, _ in snippets(page))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_python_snippets_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All of a page's, in order, in one namespace and one loop, against a mock at the address that they name."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with MockGPU(tls=False, launch_ms=0, gpus=4) as gpu, asyncio.Runner() as runner:
        try:
            for kind, code in snippets(page):
                if kind != "left out":
                    run(code.replace("http://gpu:8000", gpu.url), page.name, namespace, runner)
        finally:
            for thing in list(namespace.values()):
                if isinstance(thing, netkit.AsyncClient | netkit.httpx2.AsyncClient):
                    runner.run(thing.aclose())
                elif isinstance(thing, requests.Session | netkit.Client | netkit.httpx2.Client | openai.OpenAI):
                    thing.close()
        if page.name == "README.md":
            assert [request.path for request in gpu.log.requests] == ["/v1/embeddings", "/health"]


def run(code: str, name: str, namespace: dict[str, Any], runner: asyncio.Runner) -> None:
    """Execute a snippet; one that awaits runs in the page's loop."""
    compiled = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:
        runner.run(eval(compiled, namespace))
    else:
        exec(compiled, namespace)


def commands(page: Path) -> list[str]:
    shown = "\n".join(blocks(page, "sh"))
    return [line for line in (line.partition("  #")[0].strip() for line in shown.splitlines()) if line]


@lru_cache
def help_of(*command: str) -> str:
    """What a command says to `--help`."""
    program = [sys.executable, "-m", "netkit.cli"] if command[0] == "netkit" else [sys.executable]
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(
        [*program, *command[1:], "--help"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_take_their_options(page: Path) -> None:
    for line in commands(page):
        program, *words = shlex.split(line)
        if program == "netkit":
            command = ["netkit", *words[: 2 if words[0] == "bench" and words[1:] and words[1][0] != "-" else 1]]
        elif program.endswith("python") and words[0] == "-m":
            command = ["python", *words[:2]]
        else:
            assert program in ("make", "export", "python", "pytest", "curl", "pip"), line
            continue
        # What follows the program that `netkit run` starts is that program's own.
        own = itertools.takewhile(lambda word: not word.endswith(".py"), words)
        for option in own:
            if option.startswith("--"):
                assert option.partition("=")[0] in help_of(*command), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    known = {"python", "toml", "sh", "text", "console", "{include} ../README.md", "{toctree}", "{eval-rst}"}
    openings = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)[::2]
    assert set(openings) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configuration_snippets_are_valid(page: Path) -> None:
    for snippet in blocks(page, "toml"):
        table = tomllib.loads(snippet).get("tool", {}).get("netkit")
        if table is not None and "netkit:invalid" not in snippet:
            netkit.Config.from_mapping(table, source=page.name).check(Registry())


def test_the_plugin_table_lists_every_plugin_in_the_order_of_layers() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert named == [name for name in (*DEFAULT_LAYERS, *TRANSPORTS) if name in DEFAULT_PLUGINS]
