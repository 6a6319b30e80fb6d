"""What comes back: status, headers, cookies, redirects, authentication and bodies as the stack gives them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any

from netkit.testing.conformance._bench import Bench
from netkit.testing.conformance._rule import rule
from netkit.testing.conformance._session import Credentials, Observation, Session
from netkit.testing.mock_gpu import Answer, Exchange, expected_bytes

__all__ = ["RULES"]

_LARGE = 10 * 1024 * 1024
_FRAMING = frozenset({"connection", "keep-alive", "transfer-encoding"})


def _comparable(observation: Observation, *, across_versions: bool) -> Observation:
    """Without what differs from call to call, or from one HTTP version to another."""
    changes: dict[str, Any] = {"elapsed": None}
    if across_versions:
        headers = ((name.lower(), value) for name, value in observation.headers if name.lower() not in _FRAMING)
        changes |= {"headers": tuple(headers), "http_version": ""}
    return replace(observation, **changes)


async def _same(bench: Bench, method: str, url: str, **options: Any) -> Observation:
    """The answer, once it is proven equal to what the stack alone gives."""
    expected, got = await bench.both(lambda session: session.request(method, url, **options))
    across = expected.http_version != got.http_version
    plain, ours = (_comparable(one, across_versions=across) for one in (expected, got))
    for part in ("status", "headers", "content", "url", "http_version", "history", "cookies"):
        was, now = getattr(plain, part), getattr(ours, part)
        assert now == was, f"{part} of the answer changed: {was!r:.500} became {now!r:.500}"
    return got


@rule()
async def statuses_survive(bench: Bench) -> None:
    """Every class of status reaches the caller with its body, also where a plugin acts on it."""
    for status in (200, 201, 206, 400, 401, 404, 409, 418, 422, 500, 501):
        got = await _same(bench, "GET", f"{bench.url}/status/{status}?x-from=server")
        assert got.status == status
        assert got.values("x-from") == ["server"]


@rule()
async def multi_value_headers_survive(bench: Bench) -> None:
    """Repeated response headers stay apart and in order."""
    got = await _same(bench, "GET", f"{bench.url}/headers?x-last=9")
    assert got.values("x-multi") == ["one", "two"]
    assert got.values("set-cookie") == ["first=1; Path=/", "second=2; Path=/; HttpOnly"]


@rule()
async def cookies_are_kept_and_sent(bench: Bench) -> None:
    """A session's cookies are stored from answers, also from redirects, and sent back."""
    got = await _same(bench, "GET", f"{bench.url}/cookies/set?flavour=oat&redirect=1")
    assert got.json() == {"cookies": {"flavour": "oat"}}
    assert got.cookies == {"flavour": "oat"}


@rule()
async def redirects_keep_their_history(bench: Bench) -> None:
    """Redirects are followed with their history, for each status with the stack's own choice of method."""
    third = bench.route(lambda _: Answer.text("there"))
    second = bench.route(lambda _: Answer(302, [("location", third)]))
    first = bench.route(lambda _: Answer(307, [("location", second.removeprefix(bench.url))]))
    got = await _same(bench, "GET", first)
    assert got.history == ((307, first), (302, second))
    assert (got.url, got.content) == (third, b"there")
    for status in (301, 302, 303, 307, 308):
        target = bench.route(lambda exchange: Answer.text(f"{exchange.method} {exchange.body.size}"))
        await _same(bench, "POST", f"{bench.url}/redirect-to?url={target}&status={status}", content=b"payload")


@rule()
async def redirects_are_not_followed_when_told_so(bench: Bench) -> None:
    """Without following, the 302 itself is the answer."""
    got = await _same(bench, "GET", f"{bench.url}/redirect/1", follow=False)
    assert got.status == 302
    assert got.values("location") == ["/redirect/0"]


@rule()
async def credentials_stay_at_their_origin(bench: Bench) -> None:
    """A redirect to another origin does not carry the Authorization header there; within the origin it does."""
    away = bench.route(lambda _: Answer.text("away"), gpu=bench.other)
    home = bench.route(lambda _: Answer.text("home"))
    headers = {"Authorization": "Bearer secret", "X-Other": "kept"}
    for target, gpu in ((away, bench.other), (home, bench.gpu)):
        start = bench.route(lambda _, target=target: Answer(302, [("location", target)]))  # type: ignore[misc]
        got = await _same_but_for(bench, start, headers, gpu is bench.other)
        assert got.status == 200
        plain, ours = (record.header("authorization") for record in bench.seen(target, gpu=gpu))
        assert ours == plain, "the credentials after a redirect are not what the stack alone would have sent"
    assert [record.header("authorization") for record in bench.seen(away, gpu=bench.other)] == [None, None]


async def _same_but_for(bench: Bench, url: str, headers: dict[str, str], other: bool) -> Observation:
    if not other or bench.other.ca_file is None:
        return await _same(bench, "GET", url, headers=headers)
    async with bench.native(verify=False) as session:
        await session.request("GET", url, headers=headers)
    async with bench.session(verify=False) as session:
        return await session.request("GET", url, headers=headers)


@rule()
async def basic_auth_works(bench: Bench) -> None:
    """Right credentials are let in, wrong ones get the server's 401."""
    got = await _same(bench, "GET", f"{bench.url}/basic-auth", auth=Credentials("basic", "user", "passwd"))
    assert got.json() == {"authenticated": True, "user": "user"}
    refused = await _same(bench, "GET", f"{bench.url}/basic-auth", auth=Credentials("basic", "user", "wrong"))
    assert refused.status == 401


@rule()
async def digest_auth_works(bench: Bench) -> None:
    """The challenge and the answer to it both pass; the caller sees the second response."""
    for algorithm in ("MD5", "SHA-256"):
        url = f"{bench.url}/digest-auth?algorithm={algorithm}"
        got = await _same(bench, "GET", url, auth=Credentials("digest", "user", "passwd"))
        assert got.status == 200
        assert got.json() == {"authenticated": True, "user": "user"}


@rule()
async def encodings_are_decoded(bench: Bench) -> None:
    """gzip and deflate bodies reach the caller decoded, with length and without."""
    for coding in ("gzip", "deflate"):
        for chunked in ("", "&chunked=1"):
            got = await _same(bench, "GET", f"{bench.url}/bytes/100000?{coding}=1{chunked}")
            assert got.content == expected_bytes(100_000)
            assert got.values("content-encoding") == [coding]


@rule()
async def large_bodies_survive(bench: Bench) -> None:
    """Ten megabytes reach the caller whole, with length and without."""
    wanted = hashlib.sha256(expected_bytes(_LARGE)).digest()
    async with bench.session() as session:
        for query in ("", "?chunked=1"):
            got = await session.request("GET", f"{bench.url}/bytes/{_LARGE}{query}")
            assert len(got.content) == _LARGE
            assert hashlib.sha256(got.content).digest() == wanted


@rule()
async def empty_bodies_survive(bench: Bench) -> None:
    """Bodies of no bytes: length 0, chunked, 204, 304 and HEAD, and the connection is used again after each."""

    async def scenario(session: Session) -> list[Observation]:
        return [
            await session.request("GET", f"{bench.url}/bytes/0"),
            await session.request("GET", f"{bench.url}/bytes/0?chunked=1"),
            await session.request("GET", f"{bench.url}/status/204"),
            await session.request("GET", f"{bench.url}/status/304?etag=%22a%22"),
            await session.request("HEAD", f"{bench.url}/bytes/1000"),
            await session.request("HEAD", f"{bench.url}/redirect-to?url=/bytes/7"),
            await session.request("GET", f"{bench.url}/bytes/3"),
        ]

    before = len(bench.gpu.log.connections)
    expected, got = await bench.both(scenario)
    assert len(bench.gpu.log.connections) - before == 2, "a connection was not used again"
    for plain, ours in zip(expected, got, strict=True):
        across = plain.http_version != ours.http_version
        assert _comparable(ours, across_versions=across) == _comparable(plain, across_versions=across)
    assert [one.content for one in got[:4]] == [b"", b"", b"", b""]
    assert got[4].values("content-length") == ["1000"]
    assert got[6].content == expected_bytes(3)


@rule()
async def elapsed_is_measured(bench: Bench) -> None:
    """Where the stack measures a call, the time is there and sane."""
    url = bench.route(_delayed)
    expected, got = await bench.both(lambda session: session.request("GET", url))
    if expected.elapsed is None:
        assert got.elapsed is None
        return
    assert got.elapsed is not None
    assert timedelta(seconds=0.005) < got.elapsed < timedelta(seconds=10)


async def _delayed(exchange: Exchange) -> Answer:
    import asyncio

    await asyncio.sleep(0.01)
    return Answer.text("late")


@rule(http=("1.1",))
async def informational_answers_pass(bench: Bench) -> None:
    """A 103 before the answer changes nothing that the stack does with it."""
    got = await _same(bench, "GET", f"{bench.url}/early-hints")
    # http.client of Python 3.11 takes the 103 for the answer: what requests gives alone is what it must give here.
    assert got.status in (103, 200)


@rule()
async def an_early_refusal_is_delivered(bench: Bench) -> None:
    """An answer that is complete before the upload is read reaches the caller with its body."""
    url = bench.route(lambda _: Answer.text("too large", 413))
    got = await _same(bench, "POST", url, content=bytes(300_000))
    assert (got.status, got.content) == (413, b"too large")


RULES = (
    statuses_survive,
    multi_value_headers_survive,
    cookies_are_kept_and_sent,
    redirects_keep_their_history,
    redirects_are_not_followed_when_told_so,
    credentials_stay_at_their_origin,
    basic_auth_works,
    digest_auth_works,
    encodings_are_decoded,
    large_bodies_survive,
    empty_bodies_survive,
    elapsed_is_measured,
    informational_answers_pass,
    an_early_refusal_is_delivered,
)
