"""The command `netkit`: its entry point, and how failures end it.

Exit codes: 0 done, 1 the command found something wrong, 2 it was called or configured wrongly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from netkit.errors import NetkitError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `netkit` with `arguments` (None: those of the process) and return its exit code.

    `netkit run PROGRAM` raises what ends the program: `SystemExit`, `KeyboardInterrupt`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:
        return _run(words[1:])
    try:
        import rich  # noqa: F401 - the commands need it, and typer does without

        from netkit.cli._app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "netkit":
            raise
        return _fail(f"{error.name} is not installed; the command line needs: pip install 'netkit-http[cli]'")
    try:
        app(words, prog_name="netkit")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else _fail(str(exit_.code))
    except NetkitError as error:
        return _fail(str(error))
    return 0


def _run(words: list[str]) -> int:
    """Without the command line's own packages: the program would find them imported, and wait for that."""
    from netkit.cli.run import run

    try:
        return run(words)
    except NetkitError as error:
        return _fail(str(error))


def _fail(message: str) -> int:
    print(f"netkit: {message}", file=sys.stderr)
    return 2
