"""A program that forks in the middle of its work and says what parent and child saw: JSON lines in, JSON lines out.

A process of its own, because the one that runs tests has threads whose locks a child would inherit. It stays without
threads and sessions itself, and runs each job in a fork of its own, so that the imports are paid for once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from netkit.flow import run_sync
from netkit.http2.protocol import machine_factory
from netkit.plugins import registry
from netkit.testing.conformance._cases import FACES, is_installed
from netkit.testing.conformance._httpx import _context
from netkit.testing.conformance._session import Face, OpenOptions, Session
from netkit.testing.conformance._subject import Subject, subjects_of

__all__: list[str] = []


def serve() -> None:
    """Answer each line of standard input, until it ends. Every stack, adapter and plugin is imported first."""
    for face in FACES:
        if is_installed(face):
            asyncio.run(_open_and_close(face))
    known = registry()
    for name in known.names():
        known.get(name)
    with contextlib.suppress(ImportError):
        machine_factory()
    _context(True, None)
    for line in sys.stdin:
        job = json.loads(line)
        said = _in_child(lambda job=job: _probe(job))  # type: ignore[misc]
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


async def _open_and_close(face: Face) -> None:
    """What a stack imports only when it is used, or closed."""
    await face.open(Subject(None).plugins("2"), {}).close()


def _probe(job: dict[str, Any]) -> dict[str, Any]:
    """Calls before the fork, in the child, and in the parent after the child; each says its id and its connection."""
    (face,) = [face for face in FACES if face.name == job["face"]]
    subject = Subject(None)
    if job["plugin"] is not None:
        found = {one.name: one for one in subjects_of(job["module"] or job["plugin"], job["options"])}
        subject = found[job["plugin"]]
    options: OpenOptions = {} if job["verify"] is None else {"verify": job["verify"]}
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        run: Callable[[Coroutine[Any, Any, Any]], Any] = runner.run if face.is_async else run_sync

        async def start() -> Session:
            return face.open(subject.plugins(job["http"]), options)

        session = run(start())
        before = run(_ask(session, job["url"], "parent-before"))
        child = _in_child(lambda: _child(face, subject, session, job, options))
        after = run(_ask(session, job["url"], "parent-after"))
        run(session.close())
    return {"before": before, "child": child, "after": after}


async def _ask(session: Session, url: str, name: str) -> dict[str, Any]:
    got = await session.request("POST", f"{url}?{name}", content=name.encode())
    answer: dict[str, Any] = got.json()
    return answer


def _child(face: Face, subject: Subject, inherited: Session, job: dict[str, Any], options: OpenOptions) -> Any:
    """A synchronous child goes on with the session that it inherited; an event loop does not survive a fork, so an
    asynchronous one makes its own, in a loop of its own."""
    if not face.is_async:
        return [run_sync(_ask(inherited, job["url"], f"child-{number}")) for number in range(2)]

    async def work() -> list[dict[str, Any]]:
        session = face.open(subject.plugins(job["http"]), options)
        try:
            return [await _ask(session, job["url"], f"child-{number}") for number in range(2)]
        finally:
            await session.close()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work())


def _in_child(work: Callable[[], Any]) -> Any:
    """What `work` gives in a forked child, or the text of what it raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            said = {"result": work()}
        except BaseException as error:  # noqa: BLE001 - told to the parent
            said = {"error": "".join(traceback.format_exception(error))}
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


if __name__ == "__main__":
    serve()
