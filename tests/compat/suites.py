"""Suites: which tests of which peer are run, what they need installed, and what is left out and why.

Rules of this file: nothing of a peer's suite is copied into this repository; only names and reasons stand here.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

# Names that a suite asks for and that change no outcome here: coverage reports, linters, workers, docker.
_NOT_INSTALLED = frozenset(
    {
        "mypy",
        "pkgconfig",
        "pre-commit",
        "pytest",
        "pytest-cov",
        "pytest-xdist",
        "pytest_codspeed",
        "python-on-whales",
        "setuptools-git",
        "slotscheck",
        "valkey",
    }
)


class SuiteError(Exception):
    """A suite cannot be run: no sdist, no tests in it, or pytest never got to the first test."""


@dataclass(frozen=True)
class Suite:
    """One peer's test suite and the stack that it runs on.

    `stack` names the suite: a stack, or a library that sits on one. `sdist` is the distribution whose tests are
    taken, `peer` the one under test: they differ for httpx2, whose own distribution has no tests. `modules` are glob
    patterns in the suite, and each must match something.
    """

    stack: str
    sdist: str
    peer: str
    modules: tuple[str, ...]
    files: tuple[str, ...]
    """What is copied from the sdist besides `tests`: the pytest configuration, and files that tests read."""
    requirements: tuple[str, ...]
    """Requirements that the sdist does not name."""
    arguments: tuple[str, ...] = ()
    """pytest arguments: what is kept of the suite's own `addopts`, and warnings that are not its concern."""
    edits: tuple[tuple[str, str], ...] = ()
    """Text → text, changed in the unpacked tests before either run; PORT becomes the number of a free port."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Start of a test id → why it is not run."""
    explained: dict[str, str] = field(default_factory=dict)
    """Start of the id of a test that netkit cannot pass → why; see docs/compat.md."""
    on: tuple[str, ...] = ()
    """A library's stacks: netkit gets there by `netkit.install()`. Empty for a stack: its classes are replaced."""
    ours: bool = False
    """Tests of this repository, `folder` in it: there is no sdist and nothing to compare with, all must pass."""
    version: str | None = None
    """The version to take where the peer is not installed beside netkit; None for the installed one."""
    pins: dict[str, str] = field(default_factory=dict)
    """Versions of the stack other than the installed ones, for a library that does not work with these."""
    folder: str = "tests"
    """Where the tests are in the sdist."""
    pytest: str = "pytest>=8.4,<9"
    """The suites are of their time: pytest 9.2 fails some for what it changed (the reach of caplog)."""

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks that the suite needs."""
        return self.on or (self.stack,)


def declared_requirements(suite: Suite, source: Path) -> list[str]:
    """What the suite of the unpacked sdist in `source` says it needs, less what is of no use here."""
    if suite.sdist == "requests":
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        lines = list(project["dependency-groups"]["test"])
    elif suite.sdist == "aiohttp":
        # The tests' requirements, not lint's or runtime's: aiodns among those would change the resolver under test.
        lines = []
        for name in ("test-common-base.in", "test-common.in"):
            lines += (source / "requirements" / name).read_text(encoding="utf-8").splitlines()
    else:
        return []
    kept = []
    for line in lines:
        requirement = line.partition("#")[0].strip()
        name = requirement.partition(";")[0].strip()
        for mark in "=<>~! ":
            name = name.partition(mark)[0]
        if requirement and not requirement.startswith("-") and name not in _NOT_INSTALLED:
            kept.append(requirement)
    return kept


_HTTPX_TESTS = ("tests/test_*.py", "tests/client/test_*.py", "tests/models/test_*.py")
# httpx's tests share one server on port 8000, which anything else on the machine may hold.
_HTTPX_PORT = (
    ('lifespan="off", loop="asyncio"', 'lifespan="off", loop="asyncio", port=PORT'),
    ("127.0.0.1:8000", "127.0.0.1:PORT"),
    ("on port 8000", "on port PORT"),
)

# httpx's sdist names none. The versions are of the suite's own time: later ones fail its tests of detected
# encodings (chardet), of logging (uvicorn), of the command line (click, rich), for what they themselves changed.
_HTTPX_TOOLS = (
    "certifi",
    "chardet==5.2.*",
    "click==8.1.*",
    "cryptography",
    "pygments",
    "rich==13.*",
    "trio==0.27.*",
    "trustme",
    "uvicorn==0.32.*",
)

SUITES: dict[str, Suite] = {
    suite.stack: suite
    for suite in (
        Suite(
            stack="requests",
            sdist="requests",
            peer="requests",
            modules=("tests/test_*.py",),
            files=("pyproject.toml", "requirements-dev.txt"),
            requirements=("chardet>=3.0.2,<8",),
        ),
        Suite(
            stack="httpx",
            sdist="httpx",
            peer="httpx",
            modules=_HTTPX_TESTS,
            files=("pyproject.toml",),
            requirements=("httpx[brotli,http2,socks,zstd]", *_HTTPX_TOOLS),
            edits=_HTTPX_PORT,
        ),
        Suite(
            stack="httpx2",
            sdist="httpx",
            peer="httpx2",
            modules=_HTTPX_TESTS,
            files=("pyproject.toml",),
            requirements=("httpx2[brotli,http2,socks,zstd]", "zstandard", *_HTTPX_TOOLS),
            arguments=("-W", "ignore:`httpx2.main` is deprecated:DeprecationWarning"),
            # The client's own name, which a third of the tests of headers and hooks compare.
            edits=(*_HTTPX_PORT, ("python-httpx/", "python-httpx2/")),
        ),
        Suite(
            stack="aiohttp",
            sdist="aiohttp",
            peer="aiohttp",
            # The client, and every server test that talks to its server through the client (TestClient).
            modules=(
                "tests/test_client*.py",
                "tests/test_connector.py",
                "tests/test_cookiejar.py",
                "tests/test_formdata.py",
                "tests/test_proxy*.py",
                "tests/test_test_utils.py",
                "tests/test_tracing.py",
                "tests/test_web_*functional.py",
                "tests/test_web_app.py",
                "tests/test_web_exceptions.py",
                "tests/test_web_log.py",
                "tests/test_web_middleware.py",
                "tests/test_web_server.py",
                "tests/test_web_urldispatcher.py",
            ),
            files=("pytest.ini", "pyproject.toml", "README.rst"),
            requirements=("trustme", "isal", "brotli", "backports.zstd"),
            arguments=("-m", "not dev_mode and not autobahn and not internal"),
        ),
    )
}
