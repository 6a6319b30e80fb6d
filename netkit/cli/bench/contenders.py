"""Who calls: each stack alone, with its usual retry library, and with netkit.

Every contender waits at most `TIMEOUT` seconds for an answer, sends at most `ATTEMPTS` times, and takes the two
replicas in turn, as an application without a balancer would. netkit uses what of `PLUGINS` is there.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from netkit.cli.bench.load import Call
from netkit.plugins import registry

__all__ = ["CONTENDERS", "PLUGINS", "Contender", "plugins_for"]

TIMEOUT: Final = 0.25
TURN: Final = 4.0
"""Seconds for which httpx may wait for a connection; requests and aiohttp have no such limit."""

ATTEMPTS: Final = 3
BACKOFF: Final = 0.1
STATUSES: Final = (429, 502, 503, 504)
PATH: Final = "/v1/embeddings"
BODY: Final = {"model": "mock-embed", "input": "hello"}

PLUGINS: Final[dict[str, Callable[[Sequence[str]], Any]]] = {
    "retry": lambda urls: {"attempts": ATTEMPTS, "statuses": list(STATUSES), "backoff_initial": BACKOFF},
    "breaker": lambda urls: {"fail_max": 3, "reset_timeout": 0.4, "reset_timeout_max": 0.4, "wait": 3.0},
    "deadline": lambda urls: {"total": 4.0},
    "limit": lambda urls: True,
    "balance": lambda urls: {"endpoints": [{"url": url} for url in urls]},
}
"""netkit's settings in every row; what is not there yet is left out."""


def plugins_for(urls: Sequence[str]) -> dict[str, Any]:
    known = registry().names()
    return {name: options(urls) for name, options in PLUGINS.items() if name in known}


@dataclass(frozen=True)
class Contender:
    """`open(urls)` is an async context that gives `call(url)`: a coroutine function where `is_async`, else a plain
    one that blocks. Returns the status; raises what the stack raises."""

    stack: str
    name: str
    is_async: bool
    open: Callable[[Sequence[str]], Any]


def _requests(kind: str) -> Callable[[Sequence[str]], Any]:
    @asynccontextmanager
    async def opened(urls: Sequence[str]) -> AsyncIterator[Call]:
        module, adapters = importlib.import_module("requests"), importlib.import_module("requests.adapters")
        if kind == "netkit":
            session = importlib.import_module("netkit").Session(plugins=plugins_for(urls), config=_no_config())
        else:
            session = module.Session()
            retries = 0
            if kind == "retry":
                retries = importlib.import_module("urllib3").Retry(
                    total=ATTEMPTS - 1,
                    backoff_factor=BACKOFF,
                    status_forcelist=STATUSES,
                    allowed_methods=None,
                    raise_on_status=False,
                )
            session.mount("http://", adapters.HTTPAdapter(pool_maxsize=128, max_retries=retries))
        session.trust_env = False
        with session:
            yield lambda url: session.post(url + PATH, json=BODY, timeout=TIMEOUT).status_code

    return opened


def _httpx(kind: str) -> Callable[[Sequence[str]], Any]:
    @asynccontextmanager
    async def opened(urls: Sequence[str]) -> AsyncIterator[Call]:
        httpx = importlib.import_module("httpx")
        # To wait for one's turn is no answer that is late.
        timeout = httpx.Timeout(TIMEOUT, pool=TURN)
        if kind == "netkit":
            netkit = importlib.import_module("netkit")
            client = netkit.AsyncClient(
                plugins=plugins_for(urls), config=_no_config(), timeout=timeout, trust_env=False
            )
        elif kind == "retry":
            library = importlib.import_module("httpx_retries")
            retry = library.Retry(
                total=ATTEMPTS - 1,
                backoff_factor=BACKOFF,
                status_forcelist=STATUSES,
                allowed_methods=["GET", "POST"],
            )
            transport = library.RetryTransport(transport=httpx.AsyncHTTPTransport(), retry=retry)
            client = httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False)
        else:
            client = httpx.AsyncClient(timeout=timeout, trust_env=False)

        async def call(url: str) -> int:
            return int((await client.post(url + PATH, json=BODY)).status_code)

        async with client:
            yield call

    return opened


def _aiohttp(kind: str) -> Callable[[Sequence[str]], Any]:
    @asynccontextmanager
    async def opened(urls: Sequence[str]) -> AsyncIterator[Call]:
        aiohttp = importlib.import_module("aiohttp")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=TIMEOUT)
        if kind == "netkit":
            netkit = importlib.import_module("netkit")
            session = netkit.ClientSession(plugins=plugins_for(urls), config=_no_config(), timeout=timeout)
        elif kind == "retry":
            library = importlib.import_module("aiohttp_retry")
            options = library.ExponentialRetry(
                attempts=ATTEMPTS, start_timeout=BACKOFF, statuses=set(STATUSES), exceptions={Exception}
            )
            session = library.RetryClient(aiohttp.ClientSession(timeout=timeout), retry_options=options)
        else:
            session = aiohttp.ClientSession(timeout=timeout)

        async def call(url: str) -> int:
            async with session.post(url + PATH, json=BODY) as response:
                await response.read()
                return int(response.status)

        async with session:
            yield call

    return opened


def _no_config() -> Any:
    # Not the project's settings: the same for everybody.
    return importlib.import_module("netkit.config").Config()


CONTENDERS: Final = tuple(
    Contender(stack, names[kind], stack != "requests", make(kind))
    for stack, make, names in (
        ("requests", _requests, {"plain": "requests", "retry": "urllib3 Retry", "netkit": "netkit.Session"}),
        ("httpx", _httpx, {"plain": "httpx", "retry": "httpx-retries", "netkit": "netkit.AsyncClient"}),
        ("aiohttp", _aiohttp, {"plain": "aiohttp", "retry": "aiohttp-retry", "netkit": "netkit.ClientSession"}),
    )
    for kind in ("plain", "retry", "netkit")
)
