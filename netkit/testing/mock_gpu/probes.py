"""Routes for tests of clients: echo, bytes, statuses, redirects, cookies, streams, authentication, uploads.

Any method works on all of them; HEAD gives the head that GET would.

| route | answer |
|---|---|
| /echo | JSON: method, path, query, headers (pairs), authority, body (text up to 64 KiB), body_sha256, body_size, |
| | connection, protocol |
| /bytes/N | `expected_bytes(N)`; `?chunked=1` in pieces without length, `?gzip=1`, `?deflate=1` |
| /status/CODE | that status; query parameters become response headers |
| /redirect/N, /redirect-to?url=&status= | N hops (302, relative), then the echo |
| /cookies, /cookies/set?a=b | cookies seen; Set-Cookie of each parameter (`&redirect=1`: and a 302 to /cookies) |
| /headers?a=b | `x-multi` twice, two Set-Cookie, and each parameter as a header |
| /stream/N | N server-sent events; `interval_ms`, `gzip=1` (flushed per event), `heartbeat=1`; N = inf never ends |
| /drip | the request body (or `bytes=N`) in pieces of `size`, one per `interval_ms` |
| /delay/MS | 200 after MS milliseconds |
| /early-hints, /trailers | a 103 before the 200; trailers after the body |
| /basic-auth, /basic-auth/USER/PASSWORD | 401 until right (user, passwd) |
| /digest-auth, /digest-auth/USER/PASSWORD | the same by RFC 7616; `algorithm=MD5` or `SHA-256` |
| /counter | `{"counter": n}`, one more at each call; `key`, `delay_ms` |
| /upload | size and hash of the body, read in constant memory |
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import re
import secrets
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from . import pace
from .exchange import Answer, Exchange, HeaderList
from .expected import expected_bytes

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["mount"]

_BLOCK = 64 * 1024
_REALM = "netkit"
_FIELD = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')


def mount(backend: Backend, route: Callable[..., None]) -> None:
    """Add these routes."""
    state = _State()
    for path, handler in (
        ("/", _echo), ("/echo", _echo), ("/echo/*", _echo), ("/bytes/*", _bytes), ("/status/*", _status),
        ("/redirect/*", _redirect), ("/redirect-to", _redirect_to), ("/cookies", _cookies),
        ("/cookies/set", _set_cookies), ("/headers", _headers), ("/stream/*", _stream), ("/drip", _drip),
        ("/delay/*", _delay), ("/early-hints", _early_hints), ("/trailers", _trailers), ("/counter", state.counter),
        ("/basic-auth", _basic), ("/basic-auth/*", _basic), ("/digest-auth", state.digest),
        ("/digest-auth/*", state.digest),
    ):  # fmt: skip
        route(path, handler)
    route("/upload", _upload, streaming=True)


def _echo(exchange: Exchange) -> Answer:
    body = exchange.body
    return Answer.json(
        {
            "method": exchange.method,
            "path": exchange.path,
            "query": exchange.query,
            "headers": exchange.headers,
            "authority": exchange.authority,
            "body": exchange.content[:_BLOCK].decode("utf-8", "replace"),
            "body_sha256": body.sha256(),
            "body_size": body.size,
            "connection": exchange.connection.id,
            "protocol": exchange.protocol,
        }
    )


def _bytes(exchange: Exchange) -> Answer:
    size = _number(exchange)
    wanted = exchange.parameters
    headers: HeaderList = [("content-type", "application/octet-stream")]
    coding = next((name for name in ("gzip", "deflate") if wanted.get(name)), None)
    if coding:
        headers.append(("content-encoding", coding))
    if wanted.get("chunked") or (size > 4 * 1024 * 1024 and not coding):
        length = None if wanted.get("chunked") else size
        return Answer(200, headers, _pieces(size, coding), length)
    content = expected_bytes(size)
    if coding == "gzip":
        content = gzip.compress(content, mtime=0)
    elif coding == "deflate":
        content = zlib.compress(content)
    return Answer(200, headers, content)


async def _pieces(size: int, coding: str | None) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15) if coding else None
    for offset in range(0, size, _BLOCK):
        piece = expected_bytes(min(_BLOCK, size - offset), offset)
        yield packer.compress(piece) if packer else piece
    if packer:
        yield packer.flush()


def _status(exchange: Exchange) -> Answer:
    status = _number(exchange)
    if not 200 <= status <= 599:
        return Answer.error(400, f"/status/{status}: from 200 to 599 only")
    headers = list(exchange.parameters.items())
    if status in (204, 304):
        return Answer(status, headers)
    phrase = HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else "status"
    return Answer.error(status, phrase, headers=headers) if status >= 400 else Answer.text(phrase, status, headers)


def _redirect(exchange: Exchange) -> Answer:
    left = _number(exchange)
    return Answer(302, [("location", f"/redirect/{left - 1}")]) if left > 0 else _echo(exchange)


def _redirect_to(exchange: Exchange) -> Answer:
    wanted = exchange.parameters
    return Answer(int(wanted.get("status", "302")), [("location", wanted.get("url", "/echo"))])


def _cookies(exchange: Exchange) -> Answer:
    seen: dict[str, str] = {}
    for name, value in exchange.headers:
        if name.lower() == "cookie":
            for part in value.split(";"):
                key, _, given = part.strip().partition("=")
                seen[key] = given
    return Answer.json({"cookies": seen})


def _set_cookies(exchange: Exchange) -> Answer:
    wanted = dict(exchange.parameters)
    onward = wanted.pop("redirect", None)
    headers = [("set-cookie", f"{name}={value}; Path=/") for name, value in wanted.items()]
    if onward:
        return Answer(302, [*headers, ("location", "/cookies")])
    return Answer.json({"set": wanted}, headers=headers)


def _headers(exchange: Exchange) -> Answer:
    headers = [
        ("x-multi", "one"),
        ("x-multi", "two"),
        ("set-cookie", "first=1; Path=/"),
        ("set-cookie", "second=2; Path=/; HttpOnly"),
        *exchange.parameters.items(),
    ]
    return Answer.json({"headers": headers}, headers=headers)


def _stream(exchange: Exchange) -> Answer:
    wanted = exchange.parameters
    last = exchange.path.rpartition("/")[2]
    headers: HeaderList = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")]
    events = _events(
        None if last == "inf" else _number(exchange), float(wanted.get("interval_ms", "0")) / 1000,
        heartbeat=bool(wanted.get("heartbeat")),
    )  # fmt: skip
    if wanted.get("gzip"):
        return Answer(200, [*headers, ("content-encoding", "gzip")], _zipped(events))
    return Answer(200, headers, events)


async def _events(count: int | None, interval: float, *, heartbeat: bool) -> AsyncIterator[bytes]:
    start = time.monotonic()
    number = 0
    while count is None or number < count:
        await pace.until(start + number * interval)
        if heartbeat:
            yield b"\n"
        # `sent` is this machine's monotonic clock: a client beside it can tell how long the event took.
        yield b"data: " + msgspec.json.encode({"number": number, "sent": time.monotonic()}) + b"\n\n"
        number += 1
    yield b"data: [DONE]\n\n"


async def _zipped(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(wbits=31)
    async for event in events:
        yield packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


def _drip(exchange: Exchange) -> Answer:
    wanted = exchange.parameters
    content = exchange.content or expected_bytes(int(wanted.get("bytes", "64")))
    kind = exchange.header("content-type") or "application/octet-stream"
    step, interval = max(1, int(wanted.get("size", "1"))), float(wanted.get("interval_ms", "5")) / 1000

    async def pieces() -> AsyncIterator[bytes]:
        start = time.monotonic()
        for number, offset in enumerate(range(0, len(content), step)):
            await pace.until(start + number * interval)
            yield content[offset : offset + step]

    return Answer(200, [("content-type", kind)], pieces(), len(content) if wanted.get("length") else None)


async def _delay(exchange: Exchange) -> Answer:
    milliseconds = _number(exchange)
    await asyncio.sleep(milliseconds / 1000)
    return Answer.json({"delayed_ms": milliseconds})


async def _early_hints(exchange: Exchange) -> Answer:
    await exchange.output.informational(103, [("link", "</style.css>; rel=preload")])
    return Answer.text("after a hint")


def _trailers(exchange: Exchange) -> Answer:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"before the trailers"

    return Answer(
        200, [("content-type", "text/plain"), ("trailer", "x-checksum")], pieces(), None, [("x-checksum", "42")]
    )


async def _upload(exchange: Exchange) -> Answer:
    await exchange.body.wait()
    return Answer.json({"size": exchange.body.size, "sha256": exchange.body.sha256()})


def _basic(exchange: Exchange) -> Answer:
    user, password = _credentials(exchange)
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    if hmac.compare_digest((exchange.header("authorization") or "").encode(), wanted.encode()):
        return Answer.json({"authenticated": True, "user": user})
    return Answer.error(401, "wrong user or password", headers=[("www-authenticate", f'Basic realm="{_REALM}"')])


class _State:
    """What these routes remember between two calls: counters and nonces."""

    def __init__(self) -> None:
        self._counters: Counter[str] = Counter()
        self._nonces: dict[str, set[str]] = {}

    async def counter(self, exchange: Exchange) -> Answer:
        wanted = exchange.parameters
        key = wanted.get("key", "")
        self._counters[key] += 1
        value = self._counters[key]
        await asyncio.sleep(float(wanted.get("delay_ms", "0")) / 1000)
        return Answer.json({"counter": value})

    def digest(self, exchange: Exchange) -> Answer:
        """RFC 7616, qop "auth", MD5 and SHA-256; a nonce count is accepted once."""
        user, password = _credentials(exchange)
        algorithm = exchange.parameters.get("algorithm", "MD5")
        scheme, _, rest = (exchange.header("authorization") or "").partition(" ")
        given = {name: quoted or bare for name, quoted, bare in _FIELD.findall(rest)}
        if scheme.lower() == "digest" and self._proves(exchange, given, user, password, algorithm):
            return Answer.json({"authenticated": True, "user": user})
        nonce = secrets.token_hex(16)
        self._nonces[nonce] = set()
        challenge = (
            f'Digest realm="{_REALM}", nonce="{nonce}", qop="auth", algorithm={algorithm}, '
            f'opaque="{secrets.token_hex(8)}"'
        )
        return Answer.error(401, "digest authentication required", headers=[("www-authenticate", challenge)])

    def _proves(self, exchange: Exchange, given: dict[str, Any], user: str, password: str, algorithm: str) -> bool:
        used = self._nonces.get(given.get("nonce", ""))
        count = given.get("nc", "")
        if used is None or count in used or given.get("username") != user or given.get("uri") != exchange.target:
            return False

        def hashed(text: str) -> str:
            return hashlib.new("sha256" if algorithm == "SHA-256" else "md5", text.encode()).hexdigest()

        secret = hashed(f"{user}:{_REALM}:{password}")
        call = hashed(f"{exchange.method}:{given['uri']}")
        middle = f"{given.get('nonce')}:{count}:{given.get('cnonce')}:{given.get('qop')}"
        if hmac.compare_digest(hashed(f"{secret}:{middle}:{call}"), given.get("response", "")):
            used.add(count)
            return True
        return False


def _credentials(exchange: Exchange) -> tuple[str, str]:
    parts = exchange.path.strip("/").split("/")
    return (parts[1], parts[2]) if len(parts) == 3 else ("user", "passwd")


def _number(exchange: Exchange) -> int:
    text = exchange.path.rpartition("/")[2]
    if not text.isdigit():
        raise ValueError(f"{exchange.path}: a number is expected, not {text!r}")
    return int(text)
