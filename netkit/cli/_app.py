"""The table of commands. A command's own module is imported when it runs."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from netkit.cli import bench
from netkit.cli._extras import missing_extra
from netkit.errors import NetkitError

__all__ = ["app"]

app = typer.Typer(
    help="netkit: plugin-based middleware for requests, httpx, httpx2 and aiohttp.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")
# Commands with many options of their own read the rest of the line themselves.
FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

File = Annotated[str | None, typer.Option("--config", metavar="FILE", help="Read FILE instead of the nearest one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        typer.echo(f"netkit {version('netkit-http')}")
    except PackageNotFoundError:
        typer.echo("netkit (not installed as a distribution)")
    raise typer.Exit


@app.callback()
def netkit(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def config(
    as_json: AsJson = False,
    url: Annotated[str | None, typer.Option("--url", help="As the routes of this URL change it.")] = None,
    file: File = None,
) -> None:
    """Show every effective setting and where it came from."""
    from netkit.cli._settings import show_settings

    show_settings(file, url=url, as_json=as_json)


@app.command()
def plugins(
    names: Annotated[list[str] | None, typer.Argument(help="Only these.", show_default=False)] = None,
    as_json: AsJson = False,
    file: File = None,
) -> None:
    """List every known plugin: whether it is on here, what it does, its options, types and defaults."""
    from netkit.cli._plugins import show_plugins

    show_plugins(names or [], file, as_json=as_json)


@app.command("mock-gpu", context_settings=FORWARD, add_help_option=False)
def mock_gpu(context: typer.Context) -> None:
    """Serve a mock GPU backend until interrupted (`netkit mock-gpu --help`)."""
    from netkit.cli._mock_gpu import run

    raise typer.Exit(run(context.args))


@app.command(context_settings=FORWARD, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Measure your own stacks against a mock GPU, step by step (`netkit demo --help`)."""
    _forward("demo", context.args)


@app.command(context_settings=FORWARD, add_help_option=False)
def doctor(context: typer.Context) -> None:
    """Look at a server and suggest settings for it (`netkit doctor --help`)."""
    _forward("doctor", context.args)


@app.command(context_settings=FORWARD, add_help_option=False)
def run(context: typer.Context) -> None:
    """Run a Python program with netkit inside its HTTP sessions (`netkit run --help`)."""
    _forward("run", context.args)


@app.command(context_settings=FORWARD, add_help_option=False)
def top(context: typer.Context) -> None:
    """Watch a running process: calls, latencies, pools, streams, breakers (`netkit top --help`)."""
    _forward("top", context.args)


def _forward(command: str, arguments: list[str]) -> None:
    """Hand the rest of the line to `netkit.cli.<command>.run(arguments)`, which returns the exit code."""
    module = f"netkit.cli.{command}"
    try:
        run = importlib.import_module(module).run
    except ModuleNotFoundError as error:
        if error.name == module:
            raise NetkitError(f"this version has no command {command!r}") from error
        raise missing_extra(command, error, "all") from error
    raise typer.Exit(int(run(arguments) or 0))
