"""`netkit top`: a running process looked at through its socket."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
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


def test_a_process_that_does_not_answer_now_is_still_there(place: Path) -> None:
    program = "from netkit import monitor; monitor.serve(); print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGSTOP)
        assert monitor.running() == [process.pid]
        process.send_signal(signal.SIGCONT)
        assert monitor.look(process.pid)["pid"] == process.pid
        process.kill()
    assert monitor.running() == []
    assert list((place / f"netkit-{os.getuid()}").iterdir()) == []


def test_a_folder_that_is_gone_or_cannot_be_used(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "gone"))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    assert monitor.serve().parent == place / f"netkit-{os.getuid()}"
    monitor.stop()
    deep = place / ("x" * 120)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(netkit.NetkitError, match="too long"):
        monitor.serve()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    (place / f"netkit-{os.getuid()}").rmdir()
    (place / f"netkit-{os.getuid()}").write_text("in the way")
    assert main(["top", "--once"]) == 2
    assert "point XDG_RUNTIME_DIR elsewhere" in capsys.readouterr().err


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
