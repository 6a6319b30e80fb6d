"""`netkit top`: a running process looked at through its socket."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import netkit
from netkit import monitor
from netkit.cli import main
from netkit.testing import MockGPU


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path
    monitor.stop()


def test_another_process(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import sys, requests\n"
        "session = requests.Session()\n"
        "answer = session.post(sys.argv[1] + '/v1/embeddings', json={'model': 'm', 'input': 'x'})\n"
        "print(answer.status_code, flush=True)\n"
        "sys.stdin.read()\n"
    )
    (place / "program.py").write_text(program)
    with MockGPU(tls=False, launch_ms=0) as gpu:
        command = [sys.executable, "-m", "netkit.cli", "run", "--top", "program.py", gpu.url]
        with subprocess.Popen(command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == b"200\n"
            assert monitor.running() == [process.pid]
            assert main(["top", "--json"]) == 0
            seen = json.loads(capsys.readouterr().out)
            assert seen["program"] == "program.py"
            assert seen["stacks"]["requests"]["requests"] == 1
            assert seen["stacks"]["requests"]["live"][0]["pool"]["opened_total"] == 1
            assert main(["top", "--once", str(process.pid)]) == 0
            shown = capsys.readouterr().out
            assert "program.py" in shown
            assert "requests" in shown
            process.stdin.close()
            assert process.wait() == 0
    assert monitor.running() == []
    assert main(["top"]) == 2
    assert "no process to look at" in capsys.readouterr().err


def test_only_its_user_can_look(place: Path) -> None:
    with netkit.Session(plugins={"telemetry": {"top": True}}):
        folder = place / f"netkit-{os.getuid()}"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert monitor.look(os.getpid())["pid"] == os.getpid()
        assert monitor.serve() == monitor.serve()
    monitor.stop()
    folder.chmod(0o755)
    with pytest.raises(netkit.NetkitError, match="can be entered by others"):
        monitor.serve()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_socket_of_its_own(place: Path) -> None:
    monitor.serve()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(monitor.look(os.getpid())["pid"]).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert int(os.read(reading, 100)) == child
    os.close(reading)
    os.close(writing)
    assert monitor.look(os.getpid())["pid"] == os.getpid()
