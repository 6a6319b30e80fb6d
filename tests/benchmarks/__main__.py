"""`make bench`: every workload against servers that nobody here wrote, with peers beside netkit.

    python -m tests.benchmarks [--only W1,W5] [--faces requests,netkit.Session] [--rounds 3] [--quick]
                               [--json FILE] [--markdown FILE] [--peers]

Everything that it starts ends with it. `--peers` first makes `.compat/bench`, the environment of pyreqwest and
pyqwest.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks import harness, report, servers
from tests.benchmarks.client import MODULES

STANDALONE = {"W7": "tests.benchmarks.w7_batching"}
"""Workloads with a server and contenders of their own, as commands."""


def main() -> int:
    # Ended from outside it cleans up as well.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.partition("\n")[0])
    known = sorted({*MODULES, *STANDALONE})
    parser.add_argument("--only", default=",".join(known), help="workloads, comma-separated")
    parser.add_argument("--faces", default="", help="contenders, comma-separated; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="shorter runs and smaller loads, for a first look")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--peers", action="store_true", help="make the environment of pyreqwest and pyqwest")
    arguments = parser.parse_args()
    wanted = [name.strip().upper() for name in arguments.only.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"no workload {', '.join(unknown)} (there are {', '.join(known)})")
    if arguments.peers:
        _make_peers()
    faces = {name.strip() for name in arguments.faces.split(",") if name.strip()}
    console, status = Console(width=170 if not sys.stdout.isatty() else None), Console(stderr=True)
    absent = servers.missing()
    for name, remedy in absent.items():
        console.print(f"left out: {name} is not installed ({remedy})")

    calibrations, loads, results, pages = [harness.calibrate()], [os.getloadavg()[0]], dict[str, Any](), list[str]()
    summary: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="netkit-bench-") as name, contextlib.ExitStack() as stack:
        root = Path(name)
        servers.make_certificates(root)
        running: dict[str, Any] = {}
        for workload in wanted:
            if workload in STANDALONE:
                if faces:
                    console.print(f"left out: {workload} has contenders of its own")
                    continue
                said = _stand_alone(workload, 1 if arguments.quick else arguments.rounds)
                console.print(f"{workload}\n{said}", markup=False, highlight=False)
                results[workload] = said.splitlines()
                pages.append(f"## {workload}\n\n```text\n{said}\n```")
                continue
            module = importlib.import_module(MODULES[workload])
            if module.SERVER in absent:
                console.print(f"left out: {workload} needs {module.SERVER}")
                continue
            if module.SERVER not in running:
                start = {"nginx": servers.nginx, "granian": servers.granian}[module.SERVER]
                running[module.SERVER] = stack.enter_context(start(root))
            loads.append(os.getloadavg()[0])
            outcomes = harness.run(
                workload,
                module,
                running[module.SERVER],
                rounds=arguments.rounds,
                quick=arguments.quick,
                faces=lambda face: not faces or face in faces,
                note=lambda text: status.print(text, style="dim", markup=False, highlight=False),
            )
            calibrations.append(harness.calibrate())
            verdicts = harness.judge(module.GOALS, outcomes)
            report.show(console, module, outcomes, verdicts)
            summary += [[workload, *row] for row in report.goal_rows(verdicts)]
            results[workload] = report.as_json(outcomes, verdicts)
            pages.append(report.markdown(module, outcomes, verdicts))
            console.print(f"calibration {calibrations[-1]:.1f} ms, load average {os.getloadavg()[0]:.1f}")
    report.show_targets(console, summary)
    machine = report.machine(harness.spread(calibrations), loads)
    console.print(f"{machine}\n{report.versions()}", markup=False)
    if arguments.json:
        results["machine"], results["versions"] = machine, report.versions()
        arguments.json.write_text(json.dumps(results, indent=1))
    if arguments.markdown:
        arguments.markdown.write_text("\n\n".join([f"{machine}\n\n{report.versions()}", *pages]) + "\n")
    return 0


def _stand_alone(workload: str, rounds: int) -> str:
    """What the workload's own command prints, or why it printed nothing."""
    command = [sys.executable, "-m", STANDALONE[workload], "--rounds", str(rounds)]
    try:
        done = subprocess.run(
            command,
            cwd=servers.REPOSITORY,
            capture_output=True,
            text=True,
            timeout=300,
            preexec_fn=servers.die_with_parent,
        )
    except subprocess.TimeoutExpired:
        return "did not end within 300 s"
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
        return f"{done.stdout}failed: {reason}"
    return done.stdout.rstrip()


def _make_peers() -> None:
    venv.create(harness.PEERS, with_pip=True)
    python = harness.PEERS / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pyreqwest>=0.15", "pyqwest>=0.12"], check=True)


if __name__ == "__main__":
    sys.exit(main())
