"""`netkit run script.py …`: a program as it is, with netkit inside its HTTP sessions.

Rules of this file:

- The program sees what `python script.py …` or `python -m module …` would show it: arguments, path, `__main__`.
- Its errors, exit codes and interrupts are its own; only netkit's settings are checked before it starts.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from netkit import monitor, process
from netkit.cli import _program
from netkit.errors import NetkitError
from netkit.patching import install

__all__ = ["run"]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="netkit run",
        description="Run a Python program with netkit inside requests, httpx, httpx2 and aiohttp.",
        usage="netkit run [--config FILE] [--stats] [--top] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="settings, instead of the nearest pyproject.toml's")
    parser.add_argument("--stats", action="store_true", help="sum up on standard error what the sessions did")
    parser.add_argument("--top", action="store_true", help="let `netkit top` look at it while it runs")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument(
        "program",
        nargs=argparse.PARSER,
        metavar="SCRIPT",
        help="a file, - for standard input, a folder with a __main__.py, or a module after -m",
    )
    options = parser.parse_args(_apart(list(arguments)))
    options.program, *options.arguments = options.program
    return options


def _apart(arguments: list[str]) -> list[str]:
    """`-mpackage` as `-m package`, which Python takes as well; the program's own arguments stay as they are."""
    for place, argument in enumerate(arguments):
        if argument.startswith("-m") and len(argument) > 2:
            return [*arguments[:place], "-m", argument[2:], *arguments[place + 1 :]]
        if not argument.startswith("--") and (place == 0 or arguments[place - 1] != "--config"):
            break
    return arguments


def run(arguments: Sequence[str]) -> int:
    """Run the program; returns its exit code. What it raises ends the process as it would under Python alone:
    `SystemExit` and `KeyboardInterrupt` leave this function, all else has been printed."""
    options = _parse(arguments)
    if not options.module and options.program != "-" and not Path(options.program).exists():
        raise NetkitError(f"run: {options.program}: no such file; a module is run with -m")
    if options.config is not None:
        os.environ["NETKIT_CONFIG"] = options.config
    install()
    if options.top:
        monitor.serve()
    if options.stats:
        # Before the program's own handlers are known, hence after them: threads and handlers still send.
        atexit.register(_sum_up_in, os.getpid())
    try:
        start = _program.run_module if options.module else _program.run_script
        start(options.program, options.arguments)
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, NetkitError) and _of_the_program(error.__traceback__) is None:
            raise  # there was no program
        # As Python itself would end on it.
        told = error.with_traceback(_of_the_program(error.__traceback__))
        sys.excepthook(type(told), told, told.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            # Python's last step is to die of the signal, as shells expect. It has been shown already.
            sys.excepthook = lambda *_: None
            raise
        return 1
    return 0


def _of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    """Without the frames that are netkit's or of the import of packages. None: no other is there."""
    own = (__file__, _program.__file__, importlib.__file__, "<frozen importlib._bootstrap>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in own:
        traceback = traceback.tb_next
    return traceback


def _sum_up_in(process_id: int) -> None:
    # A forked child leaves through here too.
    if os.getpid() == process_id:
        _sum_up()


def _sum_up() -> None:
    print("netkit:", file=sys.stderr)
    totals = process.totals()
    if not any(total.requests for total in totals.values()):
        print("  no request passed", file=sys.stderr)
    for stack, total in totals.items():
        if total.requests:
            latency = total.latency
            counts = (
                _count(total.requests, "request"),
                _count(total.errors, "error"),
                _count(total.attempts, "attempt"),
                _count(total.retries, "retry", "retries"),
            )
            print(
                f"  {stack}: {', '.join(counts)}; "
                f"connections opened: {total.http2_connections} HTTP/2, {total.http1_connections} HTTP/1.1; "
                f"seconds P50 {latency.p50:.3f}, P99 {latency.p99:.3f}",
                file=sys.stderr,
            )


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"
