"""The matrix: every rule, plugin, face and HTTP version, each a case with a name of its own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from netkit.config import Config
from netkit.plugins import registry
from netkit.testing.conformance import _aiohttp, _httpx, _requests
from netkit.testing.conformance._bench import Bench, run
from netkit.testing.conformance._layer_bench import LayerBench
from netkit.testing.conformance._rule import LayerRule, Rule
from netkit.testing.conformance._rules import LAYER_RULES, RULES
from netkit.testing.conformance._servers import Servers
from netkit.testing.conformance._session import Face
from netkit.testing.conformance._subject import Subject, subjects_of

__all__ = ["FACES", "Case", "cases", "check", "is_installed"]

FACES: Final[tuple[Face, ...]] = (*_requests.FACES, *_httpx.FACES, *_aiohttp.FACES)

_VARIABLES: Final = (
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
    "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
)  # fmt: skip
"""What this machine says about trust and proxies is not what is tested."""


def is_installed(face: Face) -> bool:
    """Whether the stack of a face can be imported here."""
    try:
        face.native_class()
        face.netkit_class()
    except ModuleNotFoundError as error:
        if error.name in (face.stack, f"netkit_adapters.{face.stack}"):
            return False
        raise
    return True


@dataclass(frozen=True)
class Case:
    """One rule for one subject. `face` None: the rule needs no stack. `str()` is its test id."""

    rule: Rule | LayerRule
    subject: Subject
    face: Face | None = None
    http: str = "1.1"

    def run(self, servers: Servers | None = None) -> None:
        """Raises AssertionError, or whatever else went wrong, when the rule does not hold.

        Uses the servers of the whole test run unless given others.
        """
        if isinstance(self.rule, LayerRule):
            self.rule.check(LayerBench(self.subject))
            return
        assert self.face is not None
        servers = servers or Servers.shared()
        with _own_environment():
            bench = Bench(self.subject, self.face, self.http, servers)
            bench.gpu.log.clear()
            run(self.face, self.rule.check(bench))

    def __str__(self) -> str:
        place = "layer" if self.face is None else f"{self.face}-http{self.http}"
        return f"{self.subject}-{place}-{self.rule.name}"


def cases(
    plugin: str | Subject | Sequence[Subject],
    options: Mapping[str, Any] | None = None,
    *,
    stacks: Iterable[str] | None = None,
    http: Sequence[str] = ("1.1",),
) -> list[Case]:
    """Every case for a plugin on every stack that is installed.

    Example::

        @pytest.mark.parametrize("case", conformance.cases("acme.netkit_tenant"), ids=str)
        def test_conformance(case):
            case.run()

    `plugin` is the name of a plugin, or the import path of a module with hook implementations: each of its
    registrations is tested alone. `options` configure it. `stacks` limits the faces by name ("httpx-async") or
    stack ("httpx": sync and async). `http`: "1.1", "2". Raises ConfigError for wrong options.
    """
    if isinstance(plugin, str):
        subjects: Sequence[Subject] = subjects_of(plugin, options)
    else:
        subjects = [plugin] if isinstance(plugin, Subject) else plugin
    for subject in subjects:
        Config().with_plugins(subject.plugins("1.1"), source="options").plan(registry())
    wanted = None if stacks is None else set(stacks)
    known = {name for face in FACES for name in (face.name, face.stack)}
    if wanted is not None and not wanted <= known:
        raise ValueError(f"unknown stack {min(wanted - known)!r}; known are {', '.join(sorted(known))}")
    faces = [face for face in FACES if wanted is None or {face.name, face.stack} & wanted]
    faces = [face for face in faces if is_installed(face)]
    return [case for subject in subjects for case in _matrix(subject, faces, http)]


def _matrix(subject: Subject, faces: Sequence[Face], versions: Sequence[str]) -> Iterator[Case]:
    if subject.name is not None:
        yield from (Case(rule, subject) for rule in LAYER_RULES)
    for version in versions:
        for face in faces:
            side = "async" if face.is_async else "sync"
            for rule in RULES:
                if rule.only in (None, side) and version in rule.http:
                    yield Case(rule, subject, face, version)


def check(
    plugin: str | Subject | Sequence[Subject],
    options: Mapping[str, Any] | None = None,
    *,
    stacks: Iterable[str] | None = None,
    http: Sequence[str] = ("1.1",),
) -> int:
    """Run every case without pytest; returns how many there were.

    Raises an ExceptionGroup of all failures, each with a note that names its case.
    """
    failures: list[Exception] = []
    with Servers() as servers:
        matrix = cases(plugin, options, stacks=stacks, http=http)
        for case in matrix:
            try:
                case.run(servers)
            except Exception as error:  # noqa: BLE001 - all failures are reported together
                error.add_note(f"conformance case {case}: {case.rule.summary}")
                failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(matrix)} conformance cases failed", failures)
    return len(matrix)


@contextmanager
def _own_environment() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    try:
        with warnings.catch_warnings():
            # urllib3's remark on verify=False, which is what a rule asks for.
            warnings.filterwarnings("ignore", message="Unverified HTTPS request")
            yield
    finally:
        os.environ.update(kept)
