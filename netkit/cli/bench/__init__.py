"""`netkit bench`: measurements on this machine, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from netkit.cli._extras import missing_extra

__all__ = ["app", "bench", "faults"]

app = typer.Typer(help="Measure on this machine.", invoke_without_command=True)


@app.callback()
def bench(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Option("--url", help="A server of yours instead of the mock GPU (…/v1, or the route).")
    ] = None,
    ca: Annotated[str | None, typer.Option("--ca", metavar="FILE", help="Certificates to trust there.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", help="'Name: value', sent there, never printed; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model to name there.")] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Open loop: calls per second, Poisson arrivals.", min=0.1, max=20000.0),
    ] = None,
    calls: Annotated[int | None, typer.Option("--calls", help="Calls per run at most (300).", min=1)] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", help="Callers of the closed loop.", min=1, max=1024)
    ] = 32,
    rounds: Annotated[int | None, typer.Option("--rounds", help="How often (3).", min=1, max=100)] = None,
    stacks: Annotated[
        list[str] | None, typer.Option("--stack", help="requests, httpx or aiohttp; may be given more than once.")
    ] = None,
    steps: Annotated[
        list[int] | None, typer.Option("--step", help="Only this step; may be given more than once.")
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Beside it, the plain stacks and other clients.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="At most half a minute: httpx only, two rounds.")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Where the page with the charts is written.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before calling a server of yours.")] = False,
) -> None:
    """The ladder, measured: each stack step by step, warmed up, repeated in turn, with medians and ranges.

    At most two minutes against a mock GPU on this machine, or a server of yours. `netkit bench faults` is another.
    """
    if context.invoked_subcommand is not None:
        for name in context.params:
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise typer.BadParameter(f"options of `netkit bench` mean nothing to {context.invoked_subcommand!r}")
        return
    try:
        from netkit.cli.bench.command import Wishes, run
    except ModuleNotFoundError as error:
        raise missing_extra("bench", error, "testing") from error

    wishes = Wishes(
        url, ca, headers or (), model, rate, calls, concurrency, rounds, stacks or (), steps or (),
        peers, quick, as_json, report or (None if as_json else Path("bench-report.html")), yes,
    )  # fmt: skip
    raise typer.Exit(run(wishes))


@app.command()
def faults(
    stacks: Annotated[
        list[str] | None, typer.Option("--stack", help="requests, httpx or aiohttp; may be given more than once.")
    ] = None,
    scenarios: Annotated[
        list[str] | None, typer.Option("--fault", help="Only this fault; may be given more than once.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="How long each fault lasts.", min=0.1, max=60.0)] = 1.5,
    rate: Annotated[float, typer.Option("--rate", help="Calls per second.", min=1.0, max=500.0)] = 40.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The same faults against each stack, alone, with its usual retry library, and with netkit.

    Shares of calls that succeeded, requests that the servers saw for each call, the slowest hundredth, and how long
    after the fault calls still failed. About a minute and a half for all of it.
    """
    try:
        from netkit.cli.bench.faults import run
    except ModuleNotFoundError as error:
        raise missing_extra("bench faults", error, "all") from error

    run(stacks=stacks, scenarios=scenarios, seconds=seconds, rate=rate, as_json=as_json)
