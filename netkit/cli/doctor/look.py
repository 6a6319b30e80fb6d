"""The look itself: one connection per protocol, a bounded number of requests, a wait for the server to hang up."""

from __future__ import annotations

import json
import re
import select
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from netkit.cli.doctor.batching import MAX_PROBES, explore, routes_of
from netkit.cli.doctor.budget import Budget, Spent
from netkit.cli.doctor.diagnosis import Diagnosis, Http1Facts, Http2Facts, notable
from netkit.cli.doctor.http1 import Http1
from netkit.cli.doctor.http2 import Http2
from netkit.cli.doctor.reply import Reply
from netkit.cli.doctor.target import Target
from netkit.cli.doctor.wire import Refusal, Wire, connect

__all__ = ["Wishes", "look", "promise"]

_PINGS: Final = 3
_PLAIN: Final = 1
_KEEP_ALIVE: Final = 2
_UPLOAD_PATIENCE: Final = 1.0
_WORK: Final = 60.0
"""Seconds for everything but the idle wait."""


@dataclass(frozen=True)
class Wishes:
    """What to find out. `idle` in seconds, 0: do not wait. `route` None: where embeddings usually are. `model` None:
    one that the server lists."""

    idle: float = 10.0
    route: str | None = None
    model: str | None = None
    largest: int = 128
    batches: bool = True
    upload: bool = True


def promise(target: Target, wishes: Wishes) -> Budget:
    """What looking may cost."""
    requests = _PLAIN + _KEEP_ALIVE + (1 if target.scheme == "http" else 0) + (1 if wishes.upload else 0)
    if wishes.batches:
        routes = 1 if wishes.route is not None else len(routes_of(target.path))
        requests += MAX_PROBES + (routes - 1) + (1 if wishes.model is None else 0)
    return Budget(requests, _WORK + wishes.idle)


def look(target: Target, wishes: Wishes, context: ssl.SSLContext, budget: Budget) -> Diagnosis:
    """Find out; never raises for what a server does: `problem` says why the look ended early."""
    diagnosis = Diagnosis(
        target.shown, f"{target.origin}/*", verified=context.verify_mode is not ssl.CERT_NONE, idle_bound=wishes.idle
    )
    looker = _Look(target, wishes, context, budget, diagnosis)
    try:
        looker.run()
    except (Refusal, Spent) as error:
        diagnosis.problem = target.quote(str(error))
    except TimeoutError:
        diagnosis.problem = "the server took the connection and the request, but does not answer"
    except OSError as error:
        diagnosis.problem = target.quote(f"the connection broke ({error.strerror or type(error).__name__})")
    finally:
        looker.close()
    diagnosis.requests, diagnosis.seconds = budget.spent, budget.elapsed
    return diagnosis


class _Look:
    def __init__(
        self, target: Target, wishes: Wishes, context: ssl.SSLContext, budget: Budget, diagnosis: Diagnosis
    ) -> None:
        self._target = target
        self._wishes = wishes
        self._context = context
        self._budget = budget
        self._found = diagnosis
        self._lines: dict[str, Http1 | Http2] = {}

    def run(self) -> None:
        main = self._first()
        reply = self._ask(main, "GET", self._target.path)
        self._found.status, self._found.answered = reply.status, reply.seconds
        self._found.server = self._quoted(reply.header("server"))
        self._found.location = self._quoted(_bare(reply.header("location") or "")) or None
        if isinstance(main, Http2):
            self._quietly("PING", lambda: self._ping(main))
        self._quietly("HTTP/1.1", self._http1)
        if self._wishes.batches:
            self._quietly("batches", self._batches)
        if self._wishes.upload:
            self._quietly("uploads", self._upload)
        if self._wishes.idle:
            self._wait()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def _quietly(self, what: str, step: Callable[[], None]) -> None:
        """A step that may fail without ending the look."""
        try:
            step()
        except (Refusal, OSError) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            self._found.skipped.append(f"{what}: {self._target.quote(reason)}")

    def _quoted(self, text: str | None) -> str | None:
        return None if text is None else self._target.quote(text)

    # --- connections

    def _first(self) -> Http1 | Http2:
        """The connection that a client would have: what ALPN chooses, or HTTP/1.1 without TLS."""
        if self._target.scheme == "http" and self._speaks_prior_knowledge():
            self._found.prior_knowledge = True
        wire = self._connect(["h2", "http/1.1"])
        found = self._found
        found.address, found.tcp, found.tls = wire.address, wire.tcp_seconds, wire.tls_seconds
        found.tls_version, found.alpn = wire.tls_version, wire.protocol
        return self._open(wire)

    def _connect(self, protocols: list[str]) -> Wire:
        return connect(self._target, self._context, protocols, self._budget.deadline())

    def _open(self, wire: Wire) -> Http1 | Http2:
        line: Http1 | Http2
        try:
            if wire.protocol == "h2":
                line = Http2(wire, self._target, self._budget.deadline())
                self._found.http2 = _settings(line)
            else:
                line = Http1(wire, self._target)
        except BaseException:
            wire.close()
            raise
        self._lines[line.name] = line
        return line

    def _speaks_prior_knowledge(self) -> bool:
        self._budget.spend()  # to a server that knows no HTTP/2, the preface is a request
        wire = self._connect([])
        try:
            line = Http2(wire, self._target, self._budget.deadline(1.0))
        except Refusal:
            wire.close()
            return False
        self._lines[line.name] = line
        self._found.http2 = _settings(line)
        self._ping(line)
        return True

    def _line(self) -> Http1 | Http2:
        """A connection for the next request, the protocol that clients prefer."""
        name = "HTTP/2" if self._found.alpn == "h2" else "HTTP/1.1"
        line = self._lines[name]
        seen = self._found.http1
        closes = name == "HTTP/1.1" and seen is not None and not seen.keep_alive  # whatever it says
        if closes or not line.reusable:
            line.close()
            line = self._open(self._connect(["h2", "http/1.1"]))
        return line

    # --- questions

    def _ask(self, line: Http1 | Http2, method: str, path: str, content: bytes | None = None) -> Reply:
        self._budget.spend()
        try:
            reply = line.ask(method, path, self._budget.deadline(), content)
        except BaseException:
            line.reusable = False
            raise
        notable(self._found, reply, self._target.quote)
        return reply

    def _ping(self, line: Http2) -> None:
        assert self._found.http2 is not None
        self._found.http2.ping = line.ping(_PINGS, self._budget.deadline())

    def _http1(self) -> None:
        """Whether HTTP/1.1 is spoken too, and whether its connections are kept."""
        known = self._lines.get("HTTP/1.1")
        if known is None:
            wire = self._connect(["http/1.1"])
            if wire.protocol == "h2":
                wire.close()
                return
            line = Http1(wire, self._target)
            self._lines[line.name] = line
            reply = self._ask(line, "GET", self._target.path)
        else:
            assert isinstance(known, Http1)
            line, reply = known, Reply(0, (), b"", 0.0)
        if not line.reusable:
            self._found.http1 = Http1Facts(line.version, keep_alive=False)
            return
        try:
            reply = self._ask(line, "GET", self._target.path)
            kept = True
        except (Refusal, OSError):
            kept = False
        hints = dict(re.findall(r"(timeout|max)\s*=\s*\"?(\d{1,6})", (reply.header("keep-alive") or "").lower()))
        self._found.http1 = Http1Facts(
            line.version,
            keep_alive=kept,
            timeout=float(hints["timeout"]) if "timeout" in hints else None,
            max_requests=int(hints["max"]) if int(hints.get("max", 0)) else None,
        )

    def _batches(self) -> None:
        given = self._wishes.route
        routes = routes_of(self._target.path) if given is None else [given]
        model = self._wishes.model or self._listed_model(routes[0])

        def post(route: str, body: bytes) -> Reply:
            return self._ask(self._line(), "POST", route, body)

        for route in routes:
            found = explore(route, model, post, largest=self._wishes.largest, note=self._note)
            if found is not None:
                self._found.batching = found
                return

    def _note(self, reply: Reply) -> str:
        return f"{reply.status} {self._target.quote(reply.body[:2048])}".strip()

    def _listed_model(self, route: str) -> str:
        """A model that the server lists, one for embeddings where a name says so."""
        if not route.endswith("/embeddings"):
            return "default"
        reply = self._ask(self._line(), "GET", route.removesuffix("/embeddings") + "/models")
        try:
            listed: Any = json.loads(reply.body)
            names = [str(model["id"]) for model in listed["data"]]
        except (ValueError, KeyError, TypeError):
            names = []
        return next((name for name in names if "embed" in name.lower()), names[0] if names else "default")

    def _upload(self) -> None:
        path = self._found.batching.route if self._found.batching is not None else self._target.path
        self._budget.spend()
        if self._found.alpn == "h2":
            self._found.upload = self._line().announce(path, _UPLOAD_PATIENCE, self._budget.deadline())
            return
        line = Http1(self._connect(["http/1.1"]), self._target)  # it ends with this, the other one is waited for
        try:
            self._found.upload = line.announce(path, _UPLOAD_PATIENCE, self._budget.deadline())
        finally:
            line.close()

    def _wait(self) -> None:
        """Leave what is open idle, and see whether the server hangs up."""
        waiting = {name: line for name, line in self._lines.items() if line.reusable}
        self._found.idle = dict.fromkeys(waiting)
        ends = time.monotonic() + self._wishes.idle
        since = {name: line.wire.last_heard for name, line in waiting.items()}
        while waiting and (left := ends - time.monotonic()) > 0:
            readable = select.select([line.wire.socket for line in waiting.values()], [], [], left)[0]
            for name, line in list(waiting.items()):
                if line.wire.socket in readable and (how := line.closing()) is not None:
                    line.reusable = False
                    self._found.idle[name] = (time.monotonic() - since[name], how)
                    del waiting[name]


def _settings(line: Http2) -> Http2Facts:
    said = line.frames.settings
    return Http2Facts(said.get(3), said.get(4, 65535), line.frames.window, said.get(5, 16384), said.get(6))


def _bare(location: str) -> str:
    """Where a redirect leads, without credentials, query and fragment."""
    return re.sub(r"//[^/]*@", "//", re.split(r"[?#]", location, maxsplit=1)[0])
