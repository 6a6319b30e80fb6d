"""The environment of one suite: its sdist, unpacked tests and virtual environment, cached under `.compat/`.

Everything comes through pip as it is configured on the machine; versions are those of the calling environment, so
that what is tested is what is installed.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tests.compat.suites import Suite, SuiteError, declared_requirements

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".compat"


@dataclass(frozen=True)
class Prepared:
    """A suite that can be run."""

    python: Path
    """The interpreter of the suite's own virtual environment."""
    suite: Path
    """The directory with the suite's `tests` and pytest configuration, and nothing of the peer's package."""
    work: Path
    """Where results and logs go."""
    peer_version: str


def prepare(suite: Suite) -> Prepared:
    """Fetch, unpack and install what `suite` needs; what is already there and still right is kept."""
    work = CACHE / suite.stack
    work.mkdir(parents=True, exist_ok=True)
    source = REPOSITORY if suite.ours else _unpacked(suite)
    tests = work / "suite"
    shutil.rmtree(tests, ignore_errors=True)
    shutil.copytree(source / suite.folder, tests / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in suite.files:
        shutil.copy(source / name, tests / name)
    if not suite.files:
        # Without settings of its own the suite would run under this repository's.
        (tests / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    _edit(suite, tests)
    for pattern in suite.modules:
        if not any(tests.glob(pattern)):
            raise SuiteError(f"{source.name} has no {pattern}: the list of modules in suites.py is out of date")
    python = _environment(suite, source, work)
    version = "" if suite.ours else _version(suite.peer, suite)
    return Prepared(python=python, suite=tests, work=work, peer_version=version)


def _version(distribution: str, suite: Suite) -> str:
    return suite.version or metadata.version(distribution)


def _edit(suite: Suite, tests: Path) -> None:
    """Make the suite's edits in the unpacked tests; one that finds nothing to change is out of date."""
    port = str(_free_port())
    left = {before for before, _ in suite.edits}
    for path in sorted(tests.rglob("*.py")) if suite.edits else ():
        text = path.read_text(encoding="utf-8")
        for before, after in suite.edits:
            if before in text:
                left.discard(before)
                text = text.replace(before, after.replace("PORT", port))
        path.write_text(text, encoding="utf-8")
    if left:
        raise SuiteError(f"the tests no longer have {sorted(left)}: the edits in suites.py are out of date")


def _free_port() -> int:
    """A port that nobody listens on, below those that the system gives to outgoing connections."""
    while True:
        port = random.randint(20000, 30000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _unpacked(suite: Suite) -> Path:
    """The unpacked sdist whose version is the installed one, or the one that the suite names."""
    version = _version(suite.sdist, suite)
    target = CACHE / "sources" / f"{suite.sdist}-{version}"
    if target.is_dir():
        return target
    archives = CACHE / "sdists"
    archives.mkdir(parents=True, exist_ok=True)
    wanted = f"{suite.sdist}=={version}"
    _pip(_downloader(), "download", "--no-deps", "--no-binary", suite.sdist, "--dest", str(archives), wanted)
    # Names are spelled in several ways: Like-This, like_this.
    found = [
        path
        for path in archives.glob(f"*-{version}.tar.gz")
        if _name(path.name[: -len(f"-{version}.tar.gz")]) == _name(suite.sdist)
    ]
    if not found:
        raise SuiteError(f"pip brought no source distribution of {wanted}")
    unpacking = CACHE / "sources" / f".{suite.stack}-unpacking"
    shutil.rmtree(unpacking, ignore_errors=True)
    with tarfile.open(found[0]) as archive:
        archive.extractall(unpacking, filter="data")
    (unpacked,) = unpacking.iterdir()
    if not (unpacked / suite.folder).is_dir():
        raise SuiteError(f"the source distribution of {wanted} has no tests")
    if not target.is_dir():
        unpacked.rename(target)
    shutil.rmtree(unpacking)
    return target


def _downloader() -> str:
    """An interpreter with pip: the calling environment may have been made without."""
    target = CACHE / "pip"
    python = target / "bin" / "python"
    if not python.exists():
        _call([sys.executable, "-m", "venv", str(target)])
    return str(python)


def _environment(suite: Suite, source: Path, work: Path) -> Path:
    """A virtual environment with the peer, the suite's tools and netkit (editable); built anew if they changed."""
    wanted = sorted(_requirements(suite, source))
    pinned = _pinned(suite)
    stamp, target = work / "environment.json", work / "venv"
    python = target / "bin" / "python"
    state = {"python": sys.version, "requirements": wanted, "pins": pinned, "repository": str(REPOSITORY)}
    if stamp.exists() and python.exists() and json.loads(stamp.read_text(encoding="utf-8")) == state:
        return python
    for kept in (stamp, work / "originals.jsonl"):
        kept.unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    _venv(target)
    constraints = work / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in pinned.items()), encoding="utf-8")
    _install(python, "--constraint", str(constraints), *wanted)
    _install(python, "--no-deps", "--editable", str(REPOSITORY))
    stamp.write_text(json.dumps(state), encoding="utf-8")
    return python


def _pinned(suite: Suite) -> dict[str, str]:
    """Versions to hold to: the peer, netkit's own dependencies and all that these need, as installed here.

    The suite's tools are free, so that they can be of the suite's time.
    """
    pinned: dict[str, str] = {}
    peer = [] if suite.version or suite.ours else [suite.peer]
    names = [_name(line) for line in (*peer, *_netkit_requirements(suite))]
    while names:
        name = names.pop()
        if name in suite.pins:
            continue  # and what it needs is its own business
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            # An extra or another platform's dependency, not installed here.
            continue
        if name not in pinned:
            pinned[name] = found.version
            names += [_name(line) for line in found.requires or () if "extra ==" not in line]
    return dict(sorted((pinned | suite.pins).items()))


def _requirements(suite: Suite, source: Path) -> set[str]:
    return {
        suite.pytest,
        "pytest-timeout",
        *([] if suite.ours else [f"{suite.peer}=={_version(suite.peer, suite)}"]),
        *suite.requirements,
        *declared_requirements(suite, source),
        *_netkit_requirements(suite),
    }


def _netkit_requirements(suite: Suite) -> list[str]:
    """What netkit needs for these stacks with its default plugins, from pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["http2"], *(line for stack in suite.stacks for line in extras[stack])]


def _name(requirement: str) -> str:
    """The normalised name at the start of a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]).lower()


def _venv(target: Path) -> None:
    if shutil.which("uv"):
        _call(["uv", "venv", "--quiet", "--python", sys.executable, str(target)])
    else:
        _call([sys.executable, "-m", "venv", str(target)])


def _install(python: Path, *arguments: str) -> None:
    """With uv where it is there, as the Makefile does."""
    if shutil.which("uv"):
        _call(["uv", "pip", "install", "--quiet", "--python", str(python), *arguments])
    else:
        _pip(str(python), "install", *arguments)


def _pip(python: str, *arguments: str) -> None:
    _call([python, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check", "--no-input"])


def _call(command: list[str]) -> str:
    """Run a command to its end; its output is shown only if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # uv trusts what the machine trusts, as pip is configured to; the second is the first's older name.
    environment |= {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)
    if done.returncode:
        raise SuiteError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout
