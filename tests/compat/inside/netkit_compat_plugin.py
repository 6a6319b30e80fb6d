"""The pytest plugin that runs inside a suite's own environment: it puts classes in place and writes outcomes.

Loaded with `-p`, so before any test or conftest is imported. What to do comes in environment variables:
NETKIT_COMPAT_STACK (one or more, with commas), NETKIT_COMPAT_WAY ("classes", or "install" for `netkit.install()`),
NETKIT_COMPAT_CLASSES ("originals", "plain", "netkit"), NETKIT_COMPAT_OUT (a file of JSON lines, appended to)
and, if set, NETKIT_COMPAT_ONLY and NETKIT_COMPAT_SKIP (files of test ids, one a line).
"""

from __future__ import annotations

import gc
import importlib
import ipaddress
import json
import os
import pkgutil
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

# Original → netkit's, by stack. The first is looked up before, the second after everything else is imported.
_REPLACED = {
    "requests": {"requests.sessions.Session": "netkit.Session"},
    "httpx": {"httpx._client.Client": "netkit.Client", "httpx._client.AsyncClient": "netkit.AsyncClient"},
    "httpx2": {
        "httpx2._client.Client": "netkit.httpx2.Client",
        "httpx2._client.AsyncClient": "netkit.httpx2.AsyncClient",
    },
    "aiohttp": {"aiohttp.client.ClientSession": "netkit.ClientSession"},
}
_BAD = ("failed", "error")


def _plain(original: type) -> type:
    """The trivial subclass, under the original's own name: it is what that name leads to once it is in place."""
    with warnings.catch_warnings():
        # aiohttp disapproves of any subclass.
        warnings.simplefilter("ignore", DeprecationWarning)
        return type(original.__name__, (original,), {"__module__": original.__module__})


def _put_in_place(stack: str, classes: str) -> list[str]:
    """Replace the originals wherever a module holds them; returns the replaced names."""
    if stack == "httpx2":
        importlib.import_module("httpx2").alias_httpx()
    importlib.import_module(stack)
    originals = {name: pkgutil.resolve_name(name) for name in _REPLACED[stack]}
    if classes == "originals":
        return []
    places = []
    for name, original in originals.items():
        new = _plain(original) if classes == "plain" else pkgutil.resolve_name(_REPLACED[stack][name])
        if new is original or not issubclass(new, original):
            raise TypeError(f"{new!r} cannot stand in for {name}: it is not a subclass of it")
        for module_name, module in list(sys.modules.items()):
            # netkit's own modules bind the originals as their base classes, as this one does.
            if module_name == __name__ or module_name.partition(".")[0].startswith("netkit"):
                continue
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is original:
                    setattr(module, attribute, new)
                    places.append(f"{module_name}.{attribute}")
    return places


def _start(stacks: list[str], way: str, classes: str) -> list[str]:
    """Put netkit in place, in the suite's way; returns the names under which it stands so far."""
    if way == "classes":
        return [place for stack in stacks for place in _put_in_place(stack, classes)]
    if classes == "plain":
        raise ValueError("libraries are compared with netkit.install() only")
    if classes == "netkit":
        importlib.import_module("netkit").install()
    return []


def _standing(stacks: list[str]) -> list[str]:
    """The stacks' own names that lead to netkit's classes."""
    names = [name for stack in stacks for name in _REPLACED[stack]]
    return [name for name in names if pkgutil.resolve_name(name).__module__.startswith("netkit")]


def _is_here(host: Any) -> bool:
    """Whether a host is this machine: a loopback or unspecified address, or a name for one."""
    if not host:
        return True
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
    if name == "localhost" or name.endswith(".localhost") or name == socket.gethostname():
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _stay_here(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: nothing leaves the machine, and tests that try fail at once, the same on both sides.

    A blocking connect with a timeout meets a black hole, which is what tests of connect timeouts look for.
    """
    if event == "socket.connect":
        sock, address = arguments
        if sock.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address[0]):
            timeout = sock.gettimeout()
            if timeout:
                time.sleep(min(timeout, 1))
                raise TimeoutError("timed out")
            raise OSError(101, "Network is unreachable")
    elif event == "socket.getaddrinfo":
        host = arguments[0]
        try:
            ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host or "127.0.0.1")
        except (ValueError, UnicodeDecodeError):
            if not _is_here(host):
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None


def _lines(variable: str) -> set[str] | None:
    path = os.environ.get(variable)
    return set(Path(path).read_text(encoding="utf-8").splitlines()) if path else None


class _Recorder:
    """Writes one JSON line when a test starts and one when it ends, so that a killed run loses one test only."""

    def __init__(self, out: str) -> None:
        self._out = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self._outcome = "passed"
        self._detail = ""

    def write(self, **line: object) -> None:
        os.write(self._out, (json.dumps(line) + "\n").encode())

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        only, skip = _lines("NETKIT_COMPAT_ONLY"), _lines("NETKIT_COMPAT_SKIP")
        left_out = tuple(json.loads(os.environ.get("NETKIT_COMPAT_LEFT_OUT", "[]")))
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            wanted = (only is None or item.nodeid in only) and (skip is None or item.nodeid not in skip)
            (kept if wanted and not item.nodeid.startswith(left_out) else dropped).append(item)
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = kept

    def pytest_collection_finish(self) -> None:
        # aiohttp's fixtures collect garbage after every test; what was there before the first test need not be
        # looked at each time.
        gc.collect()
        gc.freeze()
        if _WAY == "install":
            self.write(replaced=_standing(_STACKS))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(id=report.nodeid, outcome="error", detail=report.longreprtext)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome, self._detail = "passed", ""
        self.write(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xpassed" if report.passed else "xfailed"
        elif report.failed and report.when != "call":
            outcome = "error"
        if outcome != "passed" and self._outcome not in _BAD:
            self._outcome = outcome
        if report.failed:
            self._detail += report.longreprtext

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write(id=nodeid, outcome=self._outcome, detail=self._detail)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.write(end=int(exitstatus))


def pytest_configure(config: pytest.Config) -> None:
    recorder = _Recorder(os.environ["NETKIT_COMPAT_OUT"])
    recorder.write(replaced=_PLACES)
    config.pluginmanager.register(recorder, "netkit-compat-recorder")
    sys.addaudithook(_stay_here)


_STACKS, _WAY = os.environ["NETKIT_COMPAT_STACK"].split(","), os.environ["NETKIT_COMPAT_WAY"]
_PLACES = _start(_STACKS, _WAY, os.environ["NETKIT_COMPAT_CLASSES"])
