"""Which file counts, and what other people's files may contain."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipapp
from pathlib import Path
from typing import Any

import pytest

from netkit.config import Config
from netkit.errors import ConfigError
from netkit.plugins import Registry


def attempts(config: Config, known: Registry) -> int:
    config.check(known)
    return next(int(step.options.attempts) for step in config.plan(known).steps if step.name == "retry")


def test_without_a_file_the_defaults_hold(known: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netkit.config._config.find", lambda: None)
    config = Config.load()
    assert config.path is None
    assert attempts(config, known) == 2
    assert config == Config()


def test_a_file_without_a_netkit_table_ends_the_search(place: Path, known: Registry) -> None:
    (place.parent / "pyproject.toml").write_text("[tool.netkit.retry]\nattempts = 9")
    (place.parent / "netkit.toml").unlink()
    (place / "pyproject.toml").write_text("[project]\nname = 'x'")
    config = Config.load()
    assert config.path == place / "pyproject.toml"
    assert attempts(config, known) == 2


def test_the_nearest_of_two_wins_and_is_reported(
    place: Path, known: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.parent / "pyproject.toml").write_text("[tool.netkit.retry]\nattempts = 9")
    (place / "pyproject.toml").write_text("[tool.netkit.retry]\nattempts = 7")
    deep = place / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    config = Config.load()
    assert attempts(config, known) == 7
    rows = {(row.table, row.key): row for row in config.explain(known)}
    assert rows["", "file"].value == str(place / "pyproject.toml")
    assert rows["retry", "attempts"].source == str(place / "pyproject.toml")


def test_netkit_toml_goes_before_pyproject_in_one_directory(place: Path, known: Registry) -> None:
    (place / "pyproject.toml").write_text("[tool.netkit.retry]\nattempts = 7")
    (place / "netkit.toml").write_text("[retry]\nattempts = 8")
    assert attempts(Config.load(), known) == 8


def test_netkit_toml_may_be_written_like_pyproject(place: Path, known: Registry) -> None:
    (place / "netkit.toml").write_text("[tool.netkit.retry]\nattempts = 8")
    assert attempts(Config.load(), known) == 8


@pytest.mark.parametrize(
    "text", ["[tool.netkit]\nretry = true\n[cache]\nttl = 1", "[tool.netkti.retry]\nattempts = 1"]
)
def test_nothing_in_netkit_toml_is_passed_over(text: str, place: Path) -> None:
    (place / "netkit.toml").write_text(text)
    with pytest.raises(ConfigError, match="nothing is read"):
        Config.load()


@pytest.mark.parametrize(
    "text",
    [
        "tool = 3",
        "[tool]\nruff = 'odd'\nblack = []",
        "[tool.ruff\nbroken =",
        "[project]\nname = 'a'\nname = 'b'",
        "[project]\ndependencies = ['netkit-http'",
        "[tool.netkit]",
        "",
    ],
)
def test_odd_tables_of_other_tools_change_nothing(text: str, place: Path, known: Registry) -> None:
    (place / "pyproject.toml").write_text(text)
    assert attempts(Config.load(), known) == 2


def test_bytes_that_are_no_text_in_other_tables_change_nothing(place: Path, known: Registry) -> None:
    (place / "pyproject.toml").write_bytes(b"[project]\nname = '\xff'")
    assert attempts(Config.load(), known) == 2


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"[tool.netkit.retry]\nattempts = \n", 2),
        (b"[project]\nx = [\n[ tool . 'netkit' ]\nretry = true\n", 3),
        (b"[tool.netkit]\n# \xff\n", 2),
        (b"[tool.netkit]\nretry = '", 2),
    ],
)
def test_a_syntax_error_that_may_be_ours_names_file_and_line(content: bytes, line: int, place: Path) -> None:
    (place / "pyproject.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Config.load()
    assert str(caught.value).startswith(f"{place / 'pyproject.toml'}: line {line}: ")


def test_a_syntax_error_in_a_named_file_or_netkit_toml_is_always_told(place: Path) -> None:
    (place / "pyproject.toml").write_text("[project")
    assert Config.load().path == place / "pyproject.toml"
    with pytest.raises(ConfigError, match=r"pyproject\.toml: line 1"):
        Config.load(place / "pyproject.toml")
    (place / "netkit.toml").write_text("[retry")
    with pytest.raises(ConfigError, match=r"netkit\.toml: line 1"):
        Config.load()


def test_a_byte_order_mark_is_no_error(place: Path, known: Registry) -> None:
    (place / "netkit.toml").write_bytes(b"\xef\xbb\xbf[retry]\nattempts = 8\n")
    assert attempts(Config.load(), known) == 8


def test_a_named_file_that_is_not_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read"):
        Config.load("gone.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.load(place)
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.load("a\0b")
    monkeypatch.setenv("NETKIT_CONFIG", str(place / "gone.toml"))
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read.*NETKIT_CONFIG"):
        Config.load()


def test_a_named_file_goes_before_the_variable_and_that_before_the_nearest(
    place: Path, known: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "pyproject.toml").write_text("[tool.netkit.retry]\nattempts = 7")
    (place / "own.toml").write_text("[retry]\nattempts = 8")
    (place / "shaped.toml").write_text("[other]\nx = 1\n[tool.netkit.retry]\nattempts = 9")
    monkeypatch.setenv("NETKIT_CONFIG", "own.toml")
    assert attempts(Config.load(), known) == 8
    assert attempts(Config.load("shaped.toml"), known) == 9
    monkeypatch.setenv("NETKIT_CONFIG", "")
    assert attempts(Config.load(), known) == 7


def test_a_file_is_parsed_once_until_it_changes(
    place: Path, known: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    loads = tomllib.loads

    def counted(text: str) -> dict[str, Any]:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(tomllib, "loads", counted)
    file = place / "netkit.toml"
    file.write_text("[retry]\nattempts = 8")
    assert [attempts(Config.load(), known) for _ in range(3)] == [8, 8, 8]
    assert len(parsed) == 1
    file.write_text("[retry]\nattempts = 10")
    assert attempts(Config.load(), known) == 10
    before = file.stat()
    file.write_text("[retry]\nattempts = 11")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert attempts(Config.load(), known) == 11
    assert len(parsed) == 3


def test_a_working_directory_that_is_gone(place: Path, known: Registry) -> None:
    gone = place / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        assert attempts(Config.load(), known) == 2
    finally:
        os.chdir(place)


PROGRAM = """
import sys
from netkit.config import Config
from netkit.errors import ConfigError
from netkit.plugins import Registry
try:
    Config.load().check(Registry(builtin={"retry": "netkit_test_never"}, use_entry_points=False))
except ConfigError as error:
    print(error)
never = {"netkit_test_never", "netkit_plugins", "requests", "httpx", "httpx2", "aiohttp"}
print("imported" if never & set(sys.modules) else "clean")
"""


@pytest.mark.parametrize("packed", [False, True], ids=["file", "zipapp"])
def test_a_typo_is_told_before_anything_is_imported(packed: bool, place: Path, tmp_path: Path) -> None:
    (place / "pyproject.toml").write_text("[tool.netkit.rety]\nattempts = 5")
    program = tmp_path / "program"
    program.mkdir()
    (program / "__main__.py").write_text(PROGRAM)
    target = program / "__main__.py"
    if packed:
        target = tmp_path / "program.pyz"
        zipapp.create_archive(program, target)
    below = place / "below"
    below.mkdir()
    done = subprocess.run([sys.executable, target], cwd=below, capture_output=True, text=True, check=True, timeout=60)
    told, clean = done.stdout.splitlines()
    assert told == f"{place / 'pyproject.toml'}: tool.netkit.rety: unknown key 'rety'; did you mean 'retry'?"
    assert clean == "clean"
