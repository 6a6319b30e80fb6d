"""`netkit run`: the program sees what Python would show it; netkit is inside its sessions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netkit.testing import MockGPU, faults


@pytest.fixture(scope="module")
def gpu() -> Iterator[MockGPU]:
    with MockGPU(launch_ms=0, per_item_ms=0) as server:
        yield server


def netkit_run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netkit.cli", "run", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_a_legacy_script_gets_http2_retries_and_stats(gpu: MockGPU, tmp_path: Path) -> None:
    (tmp_path / "legacy.py").write_text(
        "import sys, requests\n"
        "from beside import EMBED\n"
        "session = requests.Session()\n"
        "session.verify = sys.argv[2]\n"
        "for _ in range(3):\n"
        "    answer = session.post(sys.argv[1] + EMBED, json={'model': 'm', 'input': 'x'})\n"
        "    print(answer.status_code, answer.raw.version)\n"
    )
    (tmp_path / "beside.py").write_text("EMBED = '/v1/embeddings'\n")
    (tmp_path / "pyproject.toml").write_text("[tool.netkit.retry]\nstatuses = [503]\nbackoff_initial = 0.01\n")
    gpu.script(faults.Status(503, times=1))
    before = len(gpu.log.requests)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = netkit_run("--stats", "../legacy.py", gpu.url, gpu.ca_file, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["200", "20"] * 3
    assert len(gpu.log.requests) - before == 4
    assert "requests: 3 requests, 0 errors, 4 attempts, 1 retries" in done.stderr


def test_the_program_sees_what_python_shows(tmp_path: Path) -> None:
    program = (
        "import pickle, sys\n"
        "class Own: pass\n"
        "assert isinstance(pickle.loads(pickle.dumps(Own())), Own)\n"
        "print(__name__, sys.argv, __file__)\n"
        "import atexit\n"
        "atexit.register(lambda: print(sys.modules['__main__'].Own.__name__))\n"
        "sys.exit(7)\n"
    )
    (tmp_path / "program.py").write_text(program)
    expected = subprocess.run(
        [sys.executable, "program.py", "-x", "--stats"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    done = netkit_run("program.py", "-x", "--stats", cwd=tmp_path)
    assert done.returncode == expected.returncode == 7
    assert done.stdout.replace(str(tmp_path) + "/", "") == expected.stdout.replace(str(tmp_path) + "/", "")
    assert done.stderr == ""


def test_a_traceback_is_the_programs_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("def fail():\n    raise ValueError('mine')\nfail()\n")
    done = netkit_run("program.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: mine")
    assert "netkit" not in done.stderr
    assert "runpy" not in done.stderr


def test_a_module(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys, requests\nprint(requests.Session.__module__, sys.argv[1:])\n")
    done = netkit_run("-m", "pack", "--flag", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=1) == ["netkit_adapters.requests.session", "['--flag']\n"]


def test_what_cannot_run(tmp_path: Path) -> None:
    done = netkit_run("missing.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "netkit: run: missing.py: no such file; a module is run with -m\n"
    (tmp_path / "own.toml").write_text("retry = { attempt = 2 }\n")
    (tmp_path / "program.py").write_text("print('started')\n")
    done = netkit_run("--config", "own.toml", "program.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'attempts'" in done.stderr
    assert done.stdout == ""
