"""The command line: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import netkit.cli._plugins
import netkit.cli._settings
from netkit.cli import main
from netkit.cli._settings import merged
from netkit.config import Setting
from netkit.hookspecs import hookimpl
from netkit.plugins import Registry


@dataclass(frozen=True)
class Options:
    attempts: int = 3
    pure: tuple[str, ...] = ("[red]*/embed[/red]",)
    storage: str = "redis://u:s3cret@host"
    needed: float | None = None


@dataclass(frozen=True)
class Required:
    endpoints: tuple[str, ...]


class Plugins:
    @hookimpl
    def netkit_register(self, register: Any) -> None:
        register("retry", lambda options, context: None, options=Options, implicit=Options(), summary="sends again")
        register("balance", lambda options, context: None, options=Required, summary="spreads")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry(builtin={"broken": "netkit_test_not_there"}, use_entry_points=False)
    made.register(Plugins(), "netkit_test_plugins")
    monkeypatch.setattr(netkit.cli._settings, "registry", lambda: made)
    monkeypatch.setattr(netkit.cli._plugins, "registry", lambda: made)
    return made


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("NETKIT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.netkit.retry]\nattempts = 5\n[[tool.netkit.route]]\nmatch = 'https://h/*'\nretry = {attempts = 7}\n"
    )
    return tmp_path


def test_config_prints_values_and_origins(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert ["retry.attempts", "5", str(place / "pyproject.toml")] in lines
    assert ["retry.needed", "none", "default"] in lines
    assert ["retry.pure", '["[red]*/embed[/red]"]', "default"] in lines
    assert ["broken.on", "false", "default"] in lines
    assert ["route[0].retry.attempts", "7", str(place / "pyproject.toml")] in lines
    assert "s3cret" not in out
    assert err == ""


def test_config_says_what_a_stack_cannot_do(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netkit.cli._settings, "registry", netkit.plugins.registry)
    assert main(["config"]) == 0
    shown = capsys.readouterr().out
    assert "pool.connect_timeout does not apply: httpx gives every request a connect timeout (httpx)" in shown
    assert "pool.warm does not apply: urllib3 opens a connection only for a request (requests)" in shown
    assert main(["config", "--json"]) == 0
    rows = {f"{row['table']}.{row['key']}": row.get("applies") for row in json.loads(capsys.readouterr().out)}
    assert rows["pool.max_requests"].keys() == {"requests", "httpx", "httpx2", "aiohttp"}
    assert rows["retry.attempts"] is None


def test_config_as_json_for_a_url(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json", "--url", "https://h/x"]) == 0
    rows = json.loads(capsys.readouterr().out)
    file = str(place / "pyproject.toml")
    assert {"table": "retry", "key": "attempts", "value": 7, "source": file} in rows
    assert {"table": "", "key": "file", "value": file, "source": "read"} in rows


def test_config_of_what_is_no_url(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--url", "gpu.example/v1"]) == 2
    assert capsys.readouterr().err == "netkit: arguments: --url must be http://HOST… or https://HOST…\n"


def test_config_of_another_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "own.toml").write_text("retry = false")
    assert main(["config", "--json", "--config", "own.toml"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"table": "retry", "key": "on", "value": False, "source": str(place / "own.toml")} in rows


@pytest.mark.parametrize("command", ["config", "plugins"])
def test_a_wrong_setting_is_one_line_on_stderr(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "pyproject.toml").write_text("[tool.netkit.retry]\nmax_retry = 5")
    arguments = [command] if command == "config" else [command, "retry"]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert f"{place / 'pyproject.toml'}: tool.netkit.retry.max_retry: " in err
    assert "did you mean 'attempts'?" in err


def test_more_rows_stand_behind_those_of_their_table() -> None:
    rows = [Setting("pool", "on", True, "default"), Setting("retry", "on", True, "default")]
    extra = [Setting("pool", "max_queue", "does not apply", "requests"), Setting("new", "x", 1, "y")]
    assert merged(rows, extra) == [rows[0], extra[0], rows[1], extra[1]]


def test_plugins_tells_state_types_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "retry", "balance"]) == 0
    out = capsys.readouterr().out
    assert "retry  on  sends again  (netkit_test_plugins)" in out
    assert "balance  off  spreads  (netkit_test_plugins)" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "attempts an integer 3" in lines
    assert 'needed a number or "none" none' in lines
    assert "endpoints a list of texts (required)" in lines
    assert "s3cret" not in out


def test_a_broken_plugin_is_listed_and_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--json"]) == 0
    listed = {plugin["name"]: plugin for plugin in json.loads(capsys.readouterr().out)}
    assert "netkit_test_not_there" in listed["broken"]["error"]
    assert listed["retry"]["on"] is True
    assert listed["retry"]["options"][0] == {
        "name": "attempts",
        "type": "an integer",
        "required": False,
        "default": 3,
    }
    assert listed["balance"]["on"] is False
    assert main(["plugins", "nope"]) == 2
    assert "unknown plugin 'nope'" in capsys.readouterr().err


def test_nothing_is_on_or_off_while_a_plugin_in_use_is_broken(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "pyproject.toml").write_text("[tool.netkit]\nbroken = true")
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert "broken  broken  plugin 'broken' (netkit_test_not_there) cannot be imported" in out
    assert "retry  unknown" in out
    assert main(["config"]) == 2
    assert "netkit_test_not_there" in capsys.readouterr().err


def test_version_help_and_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("netkit ")
    assert main(["--help"]) == 0
    assert {"config", "plugins", "mock-gpu", "demo"} <= set(capsys.readouterr().out.split())
    assert main(["nope"]) == 2
    assert main(["config", "--nope"]) == 2


def test_demo_gets_the_rest_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("netkit.cli.demo")
    seen: list[list[str]] = []

    def run(arguments: list[str]) -> int:
        seen.append(arguments)
        return 3

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "netkit.cli.demo", module)
    assert main(["demo", "--seconds", "2", "--help", "x"]) == 3
    assert seen == [["--seconds", "2", "--help", "x"]]


MISSING = """
import sys
{setup}
from netkit.cli import main
sys.exit(main({arguments}))
"""


HIDDEN = """
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.parametrize(
    ("hidden", "arguments", "says"),
    [
        ("typer", ["config"], "typer is not installed; the command line needs: pip install 'netkit-http[cli]'"),
        ("rich", ["config"], "rich is not installed; the command line needs: pip install 'netkit-http[cli]'"),
        ("h11", ["bench"], "bench: h11 is not installed; it needs: pip install 'netkit-http[testing]'"),
        ("trustme", ["mock-gpu"], "mock-gpu: trustme is not installed; it needs: pip install 'netkit-http[testing]'"),
    ],
)
def test_a_missing_extra_is_named(hidden: str, arguments: list[str], says: str) -> None:
    program = MISSING.format(setup=HIDDEN.format(hidden=hidden), arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"netkit: {says}\n"


def test_a_plugin_that_lacks_its_library_says_what_to_install() -> None:
    program = MISSING.format(setup=HIDDEN.format(hidden="PIL"), arguments=["plugins", "image"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "pip install 'netkit-http[image]'" in done.stdout


def test_who_looks_at_every_attribute_meets_an_import_error() -> None:
    # freezegun does, and takes that for "not there".
    program = (
        HIDDEN.format(hidden="PIL")
        + """
import netkit
found = []
for name in dir(netkit):
    try:
        getattr(netkit, name)
    except ImportError as error:
        found.append((name, "netkit-http[image]" in str(error)))
assert found and {name for name, _ in found} <= {"preprocess", "ProcessedImage"}, found
assert all(told for _, told in found), found
"""
    )
    program = "import sys\n" + program
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_mock_gpu_serves_until_told_to_stop() -> None:
    command = [sys.executable, "-m", "netkit.cli", "mock-gpu", "--no-tls", "--dimensions", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            request = urllib.request.Request(
                started["url"] + "/v1/embeddings",
                data=json.dumps({"model": "mock-embed", "input": "a"}).encode(),
                headers={"Content-Type": "application/json"},
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=60) as response:
                assert len(json.load(response)["data"][0]["embedding"]) == 5
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_mock_gpu_says_what_its_options_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mock-gpu", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("usage: netkit mock-gpu")
    assert "--queue-size N Batches and streams that may wait" in told
    assert "--http auto|1.1|2" in told
    assert "--gpus N (1)" in told


def test_mock_gpu_refuses_wrong_options_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mock-gpu", "--gpus", "0"]) == 2
    assert capsys.readouterr().err.startswith("netkit: mock-gpu: gpus must be at least 1")
    assert main(["mock-gpu", "--gpsu", "1"]) == 2
