"""A program that forks while another thread holds every lock there is, and says how its children fared.

`python -m tests.fork.held_locks FACE,… URL,… CA_FILE` prints a line of JSON for each face; CA_FILE may be empty.
A process of its own: it has to see each lock being made, by netkit and by the libraries below, from the start on.

Rules of this file:

- The locks are all held at once, which no real thread does: each of them alone is what a fork may meet.
- A child gets everything that the parent had, ends by `sys.exit`, and is shot with a traceback where it waits.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

STUCK_SECONDS = 20.0
HOLDERS = (
    "/netkit/",
    "/netkit_plugins/",
    "/netkit_adapters/",
    "/http/cookiejar.py",
    "/httpcore/",
    "/httpcore2/",
    "/pybreaker/",
    "/urllib3/",
)
_BELOW = ("/threading.py", "/queue.py")
"""Where locks are made for somebody else, who counts."""

_made: list[tuple[Any, str]] = []


def _noted(make: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        lock = make(*arguments)
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.endswith(_BELOW):
            frame = frame.f_back
        _made.append((lock, frame.f_code.co_filename if frame is not None else ""))
        return lock

    return noted


class _AllHeld(AbstractContextManager["_AllHeld"]):
    """All locks made so far are held by a thread that does nothing else."""

    def __init__(self) -> None:
        self.count = 0
        self._held, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def __enter__(self) -> _AllHeld:
        self._thread.start()
        self._held.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _hold(self) -> None:
        wanted = [lock for lock, place in _made if any(holder in place for holder in HOLDERS)]
        held = [lock for lock in wanted if lock.acquire(blocking=False)]
        self.count = len(held)
        self._held.set()
        self._over.wait()
        for lock in held:
            lock.release()


class _Party:
    """One face's session in the parent, where a loop in a thread of its own runs the asynchronous ones."""

    def __init__(self, face: Any, urls: list[str], ca_file: str | None) -> None:
        self.face = face
        self.service = f"{urls[0].partition(':')[0]}://service.test"
        self.plugins: dict[str, Any] = {
            "telemetry": True,
            "deadline": {"total": 60.0},
            "cache": True,
            "coalesce": True,
            "image": True,
            "batch": True,
            "limit": {"concurrency": 16, "requests_per_second": 2000.0},
            "retry": True,
            "hedge": {"delay": 10.0},
            "balance": {"endpoints": urls, "url": self.service},
            "breaker": True,
            "adaptive": True,
            "pool": True,
            "http2": ca_file is not None,
        }
        self.verify: Any = {} if ca_file is None else {"verify": ca_file}

    async def open(self) -> Any:
        session = self.face.open(self.plugins, self.verify)
        if self.face.stack == "aiohttp":
            # The kit passes a connector, which stays in the parent; a session's own starts afresh.
            await session.native.close()
            session.native = self.face.netkit_class()(plugins=self.plugins)
        return session

    async def call(self, session: Any, name: str) -> None:
        """A call for every layer: merged, remembered, limited, and one that is none of it."""
        options = {"timeout": 10.0, **(self.verify if self.face.stack == "aiohttp" else {})}
        body = {"model": "m", "input": name}
        embedded = await session.request("POST", f"{self.service}/v1/embeddings", json=body, **options)
        assert embedded.status == 200, embedded.content
        cookie = await session.request("GET", f"{self.service}/cookies/set?name={name}", **options)
        assert cookie.status == 200, cookie.content
        echoed = await session.request("POST", f"{self.service}/echo", content=name.encode(), **options)
        assert echoed.json()["body"] == name, echoed.content

    async def live(self, inherited: Any) -> None:
        """All that a child does: it goes on with what it inherited, closes it, and opens a session of its own."""
        import netkit

        await self.call(inherited, "inherited")
        netkit.stats(inherited.native)
        await inherited.close()
        own = await self.open()
        await self.call(own, "own")
        await own.close()


def _run_in_thread() -> tuple[Callable[[Coroutine[Any, Any, Any]], Any], Callable[[], None]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def end() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    return lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(), end


def main(faces: list[str], urls: list[str], ca_file: str | None) -> None:
    """One line for each of `faces`: how many locks were held, and the child's exit status."""
    from netkit.flow import run_sync
    from netkit.testing import conformance

    for face in conformance.FACES:
        if face.name not in faces:
            continue
        party = _Party(face, urls, ca_file)
        run, end = _run_in_thread() if face.is_async else (run_sync, lambda: None)
        session = run(party.open())
        run(party.call(session, "before"))
        with _AllHeld() as locks:
            child = os.fork()
            if child == 0:
                _child(party, session)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        run(party.call(session, "after"))
        run(session.close())
        end()
        print(json.dumps({"face": face.name, "held": locks.count, "child": status}), flush=True)


def _child(party: _Party, session: Any) -> None:
    from netkit.flow import run_sync

    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    try:
        if party.face.is_async:
            asyncio.run(party.live(session))
        else:
            run_sync(party.live(session))
    except BaseException:
        traceback.print_exc()
        sys.exit(3)
    sys.exit(0)


if __name__ == "__main__":
    threading.Lock = _noted(threading.Lock)  # type: ignore[assignment]
    threading.RLock = _noted(threading.RLock)  # type: ignore[assignment]
    chosen, targets, authority = sys.argv[1:4]
    main(chosen.split(","), targets.split(","), authority or None)
