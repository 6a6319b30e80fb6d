"""`pytest --netkit-plugin module`, as a third party runs it: in a process and a project of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_plugin"


def _pytest(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_example_plugin_passes_by_command(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {EXAMPLE / 'src'}\n")
    done = _pytest(
        "--netkit-plugin=acme_trace", "--netkit-stack=aiohttp", "-k", "byte_identical", "-v",
        "--netkit-plugin-options", '{"sampled": false}', directory=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "netkit-conformance::acme_trace::trace-aiohttp-http1.1-a_get_is_byte_identical PASSED" in done.stdout
    assert "deselected" in done.stdout


def test_the_examples_own_tests_pass() -> None:
    done = _pytest("-q", "-k", "adds_a_trace or layer", directory=EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broken_plugin_fails_by_the_rule_that_it_breaks(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "loud.py").write_text(
        "from dataclasses import dataclass\n"
        "import netkit\n"
        "@dataclass(frozen=True)\n"
        "class Options:\n"
        "    value: str = 'a'\n"
        "def make(options, context):\n"
        "    async def loud(request, send):\n"
        "        return await send(request.replace(headers=request.headers.set('X-Loud', options.value)))\n"
        "    return loud\n"
        "@netkit.hookimpl\n"
        "def netkit_register(register):\n"
        "    register('loud', make, options=Options)\n"
    )
    done = _pytest("--netkit-plugin=loud", "--netkit-stack=requests", "-k", "byte_identical", directory=tmp_path)
    assert done.returncode == 1
    assert "headers changed on the wire" in done.stdout
    assert "FAILED netkit-conformance::loud::loud-requests-http1.1-a_get_is_byte_identical" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--netkit-plugin=no_such_module"], "no_such_module"),
        (["--netkit-plugin=retry", "--netkit-plugin-options=[1]"], "must be a JSON object"),
        (["--netkit-plugin=retry", "--netkit-plugin-options={"], "not JSON"),
        (["--netkit-plugin=retry", '--netkit-plugin-options={"atempts": 2}'], "attempts"),
        (["--netkit-plugin=retry", "--netkit-stack=curl"], "unknown stack 'curl'"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = _pytest(*arguments, directory=tmp_path)
    assert done.returncode == 4
    errors = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("ERROR")]
    assert len(errors) == 1
    assert message in errors[0]


def test_a_project_that_does_not_use_it_pays_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n"
        "def test_plain():\n"
        "    loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "    assert not loaded & {'requests', 'httpx', 'httpx2', 'aiohttp', 'urllib3', 'h11', 'trustme'}\n"
        "    assert 'netkit.testing.mock_gpu' not in sys.modules\n"
        "    assert 'netkit.testing.conformance' not in sys.modules\n"
    )
    done = _pytest("-p", "no:asyncio", "-p", "no:hypothesispytest", "-p", "no:anyio", directory=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
