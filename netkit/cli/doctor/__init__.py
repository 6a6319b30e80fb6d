"""`netkit doctor URL`: what a server speaks and allows, and the settings that follow from it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.text import Text

from netkit.cli._output import console, print_json, table
from netkit.cli.doctor.advice import block
from netkit.cli.doctor.diagnosis import Diagnosis
from netkit.cli.doctor.look import Wishes, look, promise
from netkit.cli.doctor.target import Target, parse
from netkit.cli.doctor.wire import Refusal, bundle, trust
from netkit.cli.doctor.words import findings
from netkit.errors import ConfigError, NetkitError
from netkit.http2.protocol import machine_factory

__all__ = ["run"]

_PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="netkit doctor",
        description="Look at a server: protocols, windows, round trip, idle timeout, batches, limits. Prints what "
        "was found and settings to paste. Sends a bounded number of small requests, and says how many first.",
    )
    parser.add_argument("url", metavar="URL", help="the server, or the address your client uses (…/v1)")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask before sending")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent along, never printed; repeatable"
    )
    parser.add_argument(
        "--ca",
        metavar="FILE",
        help="certificates to trust, not those of the environment (REQUESTS_CA_BUNDLE, …) or the system",
    )
    parser.add_argument("--insecure", action="store_true", help="trust any certificate")
    parser.add_argument(
        "--idle", type=float, default=10.0, metavar="SECONDS", help="wait for the server to hang up (10; 0: do not)"
    )
    parser.add_argument("--route", metavar="PATH", help="where to try batches (…/v1/embeddings and …/embed)")
    parser.add_argument("--model", help="the model to name there (one that the server lists)")
    parser.add_argument("--largest", type=int, default=128, metavar="N", help="inputs in one request at most (128)")
    parser.add_argument("--no-batches", action="store_true", help="send nothing that is computed")
    parser.add_argument("--no-upload", action="store_true", help="do not begin an upload that is too large")
    options = parser.parse_args(arguments)
    if not 0 <= options.idle <= 3600:
        parser.error("--idle must be from 0 to 3600 seconds")
    if not 2 <= options.largest <= 2048:
        parser.error("--largest must be from 2 to 2048")
    if options.route is not None and not (options.route.startswith("/") and options.route.isascii()):
        parser.error("--route must be a path: /v1/embeddings")
    if options.route is not None and any(sign <= " " for sign in options.route):
        parser.error("--route must be a path without spaces")
    return options


def run(arguments: Sequence[str]) -> int:
    """Look and print. Returns 0, or 1 where the server could not be talked to (or the look was declined)."""
    options = _parse(arguments)
    target = parse(options.url, options.header)
    wishes = Wishes(
        idle=options.idle,
        route=options.route,
        model=options.model,
        largest=options.largest,
        batches=not options.no_batches,
        upload=not options.no_upload,
    )
    if not _agreed(target, wishes, options):
        return 1
    try:
        variable, place = _certificates(target, options)
        context = trust(place, said_by=variable, insecure=options.insecure)
    except Refusal as error:
        raise ConfigError(f"doctor: {error}") from error
    try:
        machine_factory()
    except ImportError as error:
        raise NetkitError("doctor: HTTP/2 needs: pip install 'netkit-http[http2]'") from error
    diagnosis = look(target, wishes, context, promise(target, wishes))
    if options.json:
        print_json({**diagnosis.as_json(), "block": _block(diagnosis)})
    else:
        _show(diagnosis, ca=options.ca is not None)
    return 1 if diagnosis.problem is not None else 0


def _certificates(target: Target, options: argparse.Namespace) -> tuple[str, str | None]:
    """The variable that names certificates ("" where none counts), and where they are (None: the system's)."""
    if options.ca is not None or options.insecure or target.scheme == "http":
        return "", options.ca
    return bundle() or ("", None)


def _agreed(target: Target, wishes: Wishes, options: argparse.Namespace) -> bool:
    """Say what will be done; ask where somebody can answer."""
    cost = promise(target, wishes)
    told = f"{target.shown}: up to {cost.requests} requests, up to {cost.seconds:.0f} seconds"
    if wishes.batches:
        told += f"; embeddings of up to {wishes.largest} short texts at once"
    if wishes.upload:
        told += "; an upload announced as 1 GiB, broken off after 16 KiB"
    print(f"{told}.", file=sys.stderr)
    if any(os.environ.get(name) for name in _PROXIES):
        print("Goes there directly, not through the environment's proxy.", file=sys.stderr)
    variable, _ = _certificates(target, options)
    if variable:
        print(f"Trusts what {variable} names, and not the system's certificates.", file=sys.stderr)
    if options.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _block(diagnosis: Diagnosis) -> str | None:
    """None where too little is known to advise anything."""
    return block(diagnosis) if diagnosis.status is not None else None


def _show(diagnosis: Diagnosis, *, ca: bool) -> None:
    out = console()
    rows = table("", "")
    rows.show_header = False
    for topic, words in findings(diagnosis):
        rows.add_row(Text(topic, style="bold red" if topic == "PROBLEM" else "bold"), Text(words))
    out.print(Text(diagnosis.url, style="bold"))
    out.print(rows)
    out.print(
        f"{diagnosis.requests} request{'' if diagnosis.requests == 1 else 's'} in {diagnosis.seconds:.1f} s",
        highlight=False,
    )
    text = _block(diagnosis)
    if text is None:
        return
    out.print("\nFor pyproject.toml:\n", highlight=False)
    print(text)
    if ca or not diagnosis.verified:
        print("\n# Trust is the session's: verify='ca.pem' (requests), verify=/ssl= a context (the others).")
