"""`netkit run script.py …`: a program as it is, with netkit inside its HTTP sessions.

Rules of this file:

- The program sees what `python script.py …` or `python -m module …` would show it: arguments, path, `__main__`.
- Its errors, exit codes and interrupts are its own; only netkit's settings are checked before it starts.
"""

from __future__ import annotations

import argparse
import io
import os
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from netkit import monitor, process
from netkit.errors import NetkitError
from netkit.patching import install

__all__ = ["run"]

INTERRUPTED = 130


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="netkit run",
        description="Run a Python program with netkit inside requests, httpx, httpx2 and aiohttp.",
        usage="netkit run [--config FILE] [--stats] [--top] (SCRIPT | -m MODULE) [ARGUMENT ...]",
    )
    parser.add_argument("--config", metavar="FILE", help="settings, instead of the nearest pyproject.toml's")
    parser.add_argument("--stats", action="store_true", help="sum up on standard error what the sessions did")
    parser.add_argument("--top", action="store_true", help="let `netkit top` look at it while it runs")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", metavar="SCRIPT", help="a file, a folder with a __main__.py, or a module after -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="the program's own")
    return parser.parse_args(arguments)


def run(arguments: Sequence[str]) -> int:
    """Run the program; returns its exit code. What it raises leaves as it would leave Python."""
    options = _parse(arguments)
    if not options.module and not Path(options.program).exists():
        raise NetkitError(f"run: {options.program}: no such file; a module is run with -m")
    if options.config is not None:
        os.environ["NETKIT_CONFIG"] = options.config
    install()
    if options.top:
        monitor.serve()
    started_in = os.getpid()
    try:
        if options.module:
            _run_module(options.program, options.arguments)
        else:
            _run_script(options.program, options.arguments)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001
        # As Python itself would end on it.
        told = error.with_traceback(_of_the_program(error.__traceback__))
        sys.excepthook(type(told), told, told.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    finally:
        # A forked child leaves through here too.
        if options.stats and os.getpid() == started_in:
            _sum_up()
    return 0


def _run_script(script: str, arguments: list[str]) -> None:
    sys.argv[:] = [script, *arguments]
    path = Path(script)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        runpy.run_path(script, run_name="__main__")
        return
    sys.path[0] = str(path.resolve().parent)
    main: Any = types.ModuleType("__main__")
    main.__file__ = script
    main.__builtins__ = __builtins__
    # Stays: threads, exit handlers and pickles of the program look for it later.
    sys.modules["__main__"] = main
    with io.open_code(str(path.resolve())) as file:
        code = compile(file.read(), script, "exec")
    exec(code, main.__dict__)


def _run_module(module: str, arguments: list[str]) -> None:
    sys.argv[:] = [module, *arguments]
    sys.path[0] = os.getcwd()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    """Without the frames that are netkit's and runpy's."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        traceback = traceback.tb_next
    return traceback


def _sum_up() -> None:
    print("netkit:", file=sys.stderr)
    totals = process.totals()
    if not any(total.requests for total in totals.values()):
        print("  no request passed", file=sys.stderr)
    for stack, total in totals.items():
        if total.requests:
            latency = total.latency
            print(
                f"  {stack}: {total.requests} requests, {total.errors} errors, {total.attempts} attempts, "
                f"{total.retries} retries; {_connections(stack)}; "
                f"seconds P50 {latency.p50:.3f}, P99 {latency.p99:.3f}",
                file=sys.stderr,
            )


def _connections(stack: str) -> str:
    """Connections of the sessions that are alive, by protocol."""
    http1 = http2 = 0
    for edge in process.edges():
        if edge.stack == stack:
            stats = edge.stats()
            http1 += stats.pool.opened_total
            http2 += getattr(stats.plugins.get("http2"), "opened_total", 0)
    return f"connections opened: {http2} HTTP/2, {http1} HTTP/1.1"
