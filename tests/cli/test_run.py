"""`netkit run`: the program sees what Python would show it; netkit is inside its sessions."""

from __future__ import annotations

import os
import py_compile
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from netkit.testing import MockGPU, faults


@pytest.fixture(scope="module")
def gpu() -> Iterator[MockGPU]:
    with MockGPU(launch_ms=0, per_item_ms=0) as server:
        yield server


def netkit_run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return _python("-m", "netkit.cli", "run", *arguments, cwd=cwd, **environment)


def both(*arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """What Python makes of it, and what `netkit run` does."""
    return _python(*arguments, cwd=cwd), netkit_run(*arguments, cwd=cwd)


def _python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        input="typed",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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
    assert (
        "requests: 3 requests, 0 errors, 4 attempts, 1 retry; connections opened: 1 HTTP/2, 0 HTTP/1.1" in done.stderr
    )


SEEN = """
import os, pickle, sys, threading
class Own: pass
def annotated(x: int): pass
assert isinstance(pickle.loads(pickle.dumps(Own())), Own)
print(__name__, sys.argv, __file__, repr(__package__), type(__loader__).__name__, annotated.__annotations__)
print(__spec__ and __spec__.name, sys.path[0], sorted(globals()), sys.stdin.read())
import atexit
atexit.register(lambda: print(sys.modules['__main__'].Own.__name__, pickle.dumps(Own())[:1]))
os.chdir('/')
print(os.path.exists(__file__))
def late():
    threading.main_thread().join()
    print('late', pickle.dumps(Own())[:1])
threading.Thread(target=late).start()
sys.exit(7)
"""


@pytest.mark.parametrize(
    "called",
    [
        ("program.py", "-x", "--stats"),
        ("folder", "-m"),
        ("packed", "x"),
        ("-m", "program", "-x"),
        ("-mfolder", "--help"),
        ("-m", "folder.__main__"),
        ("program.pyc",),
    ],
)
def test_the_program_sees_what_python_shows(tmp_path: Path, called: tuple[str, ...]) -> None:
    (tmp_path / "program.py").write_text(SEEN)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(SEEN)
    with zipfile.ZipFile(tmp_path / "packed", "w") as archive:
        archive.writestr("__main__.py", SEEN)
    py_compile.compile(str(tmp_path / "program.py"), cfile=str(tmp_path / "program.pyc"))
    plain, ours = both(*called, cwd=tmp_path)
    assert ours.returncode == plain.returncode == 7
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr == ""


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nsys.exit('a message')\n",
        "raise SystemExit(3)\n",
        "raise KeyboardInterrupt\n",
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n",
        "import sys\nsys.excepthook = lambda *a: print('own hook', a[0])\nraise ValueError\n",
        "def f(:\n",
        "import warnings\nwarnings.warn('old', DeprecationWarning)\n",
        "import pathlib\nraise LookupError(pathlib.Path('x'))\n",
    ],
)
def test_the_program_ends_as_under_python(tmp_path: Path, text: str) -> None:
    (tmp_path / "program.py").write_text(text)
    plain, ours = both("program.py", cwd=tmp_path)
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_a_signal_is_what_the_interrupted_program_dies_of(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import atexit\natexit.register(print, 'closed')\nraise KeyboardInterrupt\n")
    done = netkit_run("program.py", cwd=tmp_path)
    assert done.returncode == -signal.SIGINT
    assert done.stdout == "closed\n"
    assert done.stderr.count("KeyboardInterrupt") == 2  # the line of the program, and the exception


def test_the_command_line_brings_no_package_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\nprint({'typer', 'click', 'rich', 'pydantic', 'requests'} & set(sys.modules))\n"
    )
    done = netkit_run("program.py", cwd=tmp_path)
    assert done.stdout == "set()\n", done.stderr


def test_the_sum_waits_for_threads_and_handlers_and_knows_sessions_that_are_gone(
    gpu: MockGPU, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(
        "import atexit, gc, sys, threading, requests, httpx\n"
        "def call(client):\n"
        "    with client: client.get(sys.argv[1] + '/health').raise_for_status()\n"
        "    del client\n"
        "    gc.collect()\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    call(requests.Session())\n"
        "for http2 in (True, False): call(httpx.Client(verify=sys.argv[2], plugins={'http2': http2}))\n"
        "call(requests.Session())\n"
        "threading.Thread(target=late).start()\n"
        "atexit.register(lambda: call(requests.Session()))\n"
    )
    done = netkit_run("--stats", "program.py", gpu.url, gpu.ca_file, cwd=tmp_path, REQUESTS_CA_BUNDLE=gpu.ca_file)
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert told[0] == "netkit:"
    assert told[1].startswith(
        "  httpx: 2 requests, 0 errors, 2 attempts, 0 retries; connections opened: 1 HTTP/2, 1 HTTP/1.1; "
    )
    assert told[2].startswith(
        "  requests: 3 requests, 0 errors, 3 attempts, 0 retries; connections opened: 3 HTTP/2, 0 HTTP/1.1; "
    )
    assert len(told) == 3


def test_standard_input_may_hold_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "netkit.cli", "run", "-", "x"]
    done = subprocess.run(
        command, cwd=tmp_path, input="import sys\nprint(sys.argv)", capture_output=True, text=True, check=True
    )
    assert done.stdout == "['-', 'x']\n"


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
    for called, told in [
        (("-m", "no.module"), "no module named no.module"),
        (("-m", "sys"), "sys has no Python code"),
        (("empty",), "empty: there is no __main__ in it"),
    ]:
        (tmp_path / "empty").mkdir(exist_ok=True)
        done = netkit_run(*called, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"netkit: run: {told}")
        assert done.stderr.count("\n") == 1
    (tmp_path / "own.toml").write_text("retry = { attempt = 2 }\n")
    (tmp_path / "program.py").write_text("print('started')\n")
    done = netkit_run("--config", "own.toml", "program.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'attempts'" in done.stderr
    assert done.stdout == ""
