"""What callers do in a storm: each checks that what it got is its own, or a native error of its stack.

Rules of this file:

- A wrong answer or a foreign exception is a finding; everything else is weather.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx
import requests

from netkit.testing import expected_vector
from netkit.testing.mock_gpu import expected_bytes

__all__ = ["Tally", "call_in_task", "call_in_thread"]

DOWNLOAD = expected_bytes(100_000)


class Tally:
    """Counts of one storm. `findings` must stay empty."""

    def __init__(self) -> None:
        self.answers = 0
        self.errors = 0
        self.cancelled = 0
        self.findings: list[str] = []

    def check(self, right: bool, what: str) -> None:
        self.answers += 1
        if not right:
            self.findings.append(what)

    def __repr__(self) -> str:
        return (
            f"<Tally {self.answers} answers, {self.errors} errors, {self.cancelled} cancelled, "
            f"{len(self.findings)} findings>"
        )


async def call_in_task(client: httpx.AsyncClient, url: str, who: int, until: float, seed: int, tally: Tally) -> None:
    """One task's calls until the storm ends, some of them cancelled at a random moment."""
    rng = random.Random(f"{seed} task {who}")
    number = 0
    while time.monotonic() < until:
        number += 1
        token = f"task {who} call {number}"
        limit = rng.choice((None, None, None, rng.uniform(0, 0.05)))
        try:
            async with asyncio.timeout(limit):
                await _one_async(client, url, token, rng, tally)
        except TimeoutError:
            tally.cancelled += 1
        except httpx.HTTPError:
            tally.errors += 1
        except Exception as error:
            tally.findings.append(f"{token}: {error!r}")


async def _one_async(client: httpx.AsyncClient, url: str, token: str, rng: random.Random, tally: Tally) -> None:
    kind = rng.randrange(5)
    timeout = rng.choice((10.0, 10.0, 10.0, rng.uniform(0.01, 0.1)))
    if kind == 0:
        answer = await client.post(f"{url}/echo", content=token, timeout=timeout)
        tally.check(answer.status_code == 503 or answer.json()["body"] == token, f"{token}: another's echo")
    elif kind == 1:
        body = {"model": "m", "input": token}
        answer = await client.post(f"{url}/v1/embeddings", json=body, timeout=timeout)
        right = answer.status_code == 503 or _is_vector(answer.json(), token)
        tally.check(right, f"{token}: another's vector")
    elif kind == 2:
        answer = await client.get(f"{url}/bytes/{len(DOWNLOAD)}", timeout=timeout)
        tally.check(answer.status_code == 503 or answer.content == DOWNLOAD, f"{token}: wrong bytes")
    elif kind == 3:
        async with client.stream("GET", f"{url}/stream/50?interval_ms=2", timeout=timeout) as answer:
            async for chunk in answer.aiter_raw():
                tally.check(bool(chunk), f"{token}: an empty chunk")
                if rng.random() < 0.2:
                    break
    else:
        upload = token.encode() * 20_000
        answer = await client.post(f"{url}/upload", content=upload, timeout=timeout)
        right = answer.status_code == 503 or answer.json()["size"] == len(upload)
        tally.check(right, f"{token}: a short upload")


def call_in_thread(session: requests.Session, url: str, who: int, until: float, seed: int, tally: Tally) -> None:
    """One thread's calls until the storm ends, some of them left early or timed out."""
    rng = random.Random(f"{seed} thread {who}")
    number = 0
    while time.monotonic() < until:
        number += 1
        token = f"thread {who} call {number}"
        try:
            _one_sync(session, url, token, rng, tally)
        except requests.RequestException:
            tally.errors += 1
        except Exception as error:
            tally.findings.append(f"{token}: {error!r}")


def _one_sync(session: requests.Session, url: str, token: str, rng: random.Random, tally: Tally) -> None:
    kind = rng.randrange(4)
    timeout = rng.choice((10.0, 10.0, 10.0, rng.uniform(0.01, 0.1)))
    if kind == 0:
        answer = session.post(f"{url}/echo", data=token, timeout=timeout)
        tally.check(answer.status_code == 503 or answer.json()["body"] == token, f"{token}: another's echo")
    elif kind == 1:
        answer = session.get(f"{url}/bytes/{len(DOWNLOAD)}", timeout=timeout)
        tally.check(answer.status_code == 503 or answer.content == DOWNLOAD, f"{token}: wrong bytes")
    elif kind == 2:
        with session.get(f"{url}/stream/50?interval_ms=2", stream=True, timeout=timeout) as answer:
            for chunk in answer.iter_content(None):
                tally.check(bool(chunk), f"{token}: an empty chunk")
                if rng.random() < 0.2:
                    break
    else:
        upload = token.encode() * 20_000
        answer = session.post(f"{url}/upload", data=upload, timeout=timeout)
        right = answer.status_code == 503 or answer.json()["size"] == len(upload)
        tally.check(right, f"{token}: a short upload")


def _is_vector(answer: Any, text: str) -> bool:
    have = answer["data"][0]["embedding"]
    want = expected_vector(text, dimensions=len(have))
    return all(abs(a - b) < 1e-6 for a, b in zip(have, want, strict=True))
