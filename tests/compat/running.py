"""One run of a suite: pytest in a child process, watched, and its outcomes read back.

A test that hangs or takes the interpreter down costs itself only: the child is ended, the test is marked, and the
run goes on with those that are left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compat.environment import REPOSITORY, Prepared
from tests.compat.suites import Suite, SuiteError

PER_TEST = 60
"""Seconds after which pytest-timeout fails a test."""
SILENCE = 150
"""Seconds without a finished test after which the child is ended: above PER_TEST, which a blocked thread ignores."""
LIVES = 10
"""How often a run is taken up again after a hang or a crash."""

_DROPPED = ("_PROXY", "_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE", "NETRC", "PYTEST_ADDOPTS")


@dataclass
class Run:
    """What became of each test: passed, failed, error, skipped, xfailed, xpassed, hung, crashed."""

    outcomes: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    """The attributes in which netkit's classes stood."""
    seconds: float = 0.0
    finished: bool = False
    started: str | None = None

    def take(self, line: dict[str, Any]) -> None:
        if "replaced" in line:
            self.replaced = line["replaced"]
        elif "start" in line:
            self.started = line["start"]
        elif "end" in line:
            self.finished = True
        else:
            self.outcomes[line["id"]] = line["outcome"]
            self.details[line["id"]] = line["detail"]
            self.started = None


def run(
    suite: Suite,
    prepared: Prepared,
    classes: str,
    *,
    name: str,
    keyword: str | None = None,
    only: Collection[str] | None = None,
) -> Run:
    """Run `suite` with `classes` in place ("originals", "plain", "netkit"); `only` limits it to these test ids."""
    work = prepared.work
    out, log = work / f"{name}.jsonl", work / f"{name}.log"
    out.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    home = work / "home"
    home.mkdir(exist_ok=True)
    environment = _environment(suite, classes, out, home)
    if only is not None:
        environment["NETKIT_COMPAT_ONLY"] = str(_listed(work / f"{name}.only", only))
    command = _command(suite, prepared, keyword, only)
    result, begun = Run(), time.monotonic()
    for _ in range(LIVES):
        environment["NETKIT_COMPAT_SKIP"] = str(_listed(work / f"{name}.done", result.outcomes))
        end = _watched(command, prepared.suite, environment, out, log)
        result = read(out)
        if result.finished:
            result.seconds = time.monotonic() - begun
            return result
        if result.started is None:
            break
        with out.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"id": result.started, "outcome": end, "detail": f"see {log.name}"}) + "\n")
        result = read(out)
    tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
    raise SuiteError(f"{suite.stack}: pytest did not get through the suite with {classes}:\n{tail}")


def read(out: Path) -> Run:
    """The outcomes in a file of JSON lines that the plugin wrote."""
    result = Run()
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
        result.take(json.loads(line))
    return result


def _command(suite: Suite, prepared: Prepared, keyword: str | None, only: Collection[str] | None) -> list[str]:
    command = [str(prepared.python), "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors"]
    # netkit brings a pytest plugin of its own, which would import netkit into the run with the originals.
    command += ["-p", "no:netkit", "-p", "netkit_compat_plugin", *suite.arguments]
    command += ["--timeout", str(PER_TEST), "--timeout-method", "signal"]
    if keyword:
        command += ["-k", keyword]
    paths = sorted({path.relative_to(prepared.suite) for p in suite.modules for path in prepared.suite.glob(p)})
    wanted = None if only is None else {test.partition("::")[0] for test in only}
    return command + [str(path) for path in paths if wanted is None or str(path) in wanted]


def _environment(suite: Suite, classes: str, out: Path, home: Path) -> dict[str, str]:
    """The child's environment: nothing of the machine's proxies, certificates, netrc, netkit or Python settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().endswith(_DROPPED) and not name.startswith(("NETKIT_", "PYTHON", "COV_"))
    }
    return kept | {
        "HOME": str(home),
        "PYTHONPATH": str(REPOSITORY / "tests" / "compat" / "inside"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NETKIT_COMPAT_STACK": ",".join(suite.stacks),
        "NETKIT_COMPAT_WAY": "install" if suite.on else "classes",
        "NETKIT_COMPAT_CLASSES": classes,
        "NETKIT_COMPAT_OUT": str(out),
        "NETKIT_COMPAT_LEFT_OUT": json.dumps(sorted(suite.left_out)),
    }


def _listed(path: Path, tests: Collection[str]) -> Path:
    path.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
    return path


def _watched(command: list[str], directory: Path, environment: dict[str, str], out: Path, log: Path) -> str:
    """Run the child to its end, or end it after SILENCE; says what an unfinished test did: it hung or crashed."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with _ended(child):
            size, quiet_since = -1, time.monotonic()
            while child.poll() is None:
                grown = out.stat().st_size if out.exists() else 0
                if grown != size:
                    size, quiet_since = grown, time.monotonic()
                elif time.monotonic() - quiet_since > SILENCE:
                    return "hung"
                try:
                    child.wait(1)
                except subprocess.TimeoutExpired:
                    pass
    return "crashed"


@contextmanager
def _ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave nothing of the child behind: servers that its tests started are in its process group."""
    try:
        yield
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
