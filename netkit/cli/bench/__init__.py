"""`netkit bench`: measurements on this machine, one command each."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["app", "bench", "faults"]

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    pass


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
    from netkit.cli.bench.faults import run

    run(stacks=stacks, scenarios=scenarios, seconds=seconds, rate=rate, as_json=as_json)
