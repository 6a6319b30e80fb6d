"""The face of aiohttp."""

from __future__ import annotations

import importlib
import io
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from netkit.testing.conformance._httpx import _context
from netkit.testing.conformance._session import Face, Observation, OpenOptions, Session, Stream

__all__ = ["FACES"]

_LARGE = 512 * 1024


class _Stream(Stream):
    def __init__(self, response: Any) -> None:
        self.native = response
        self.status = response.status

    async def chunk(self) -> bytes:
        piece: bytes = await self.native.content.readany()
        return piece

    async def close(self) -> None:
        self.native.close()


class _Session(Session):
    def __init__(self, kind: type[Any], arguments: Mapping[str, Any], options: OpenOptions) -> None:
        import aiohttp

        extra: dict[str, Any] = {}
        if "proxy" in options:
            extra["proxy"] = options["proxy"]
        tls = _tls(options.get("verify", True), options.get("cert"))
        # Cookies of an address instead of a name are kept only when asked for.
        jar = aiohttp.CookieJar(unsafe=True)
        self.native = kind(connector=aiohttp.TCPConnector(ssl=tls), cookie_jar=jar, **arguments, **extra)

    async def request(self, method: str, url: str, **options: Any) -> Observation:
        async with self.native.request(method, url, **_arguments(options)) as response:
            content = await response.read()
        return Observation(
            status=response.status,
            headers=tuple((name.decode(), value.decode("latin-1")) for name, value in response.raw_headers),
            content=content,
            url=str(response.url),
            http_version=_version(response.version),
            history=tuple((past.status, str(past.url)) for past in response.history),
            cookies={cookie.key: cookie.value for cookie in self.native.cookie_jar},
        )

    async def open_stream(self, method: str, url: str, **options: Any) -> Stream:
        return _Stream(await self.native.request(method, url, **_arguments(options)))

    async def close(self) -> None:
        await self.native.close()


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    import aiohttp

    timeout = options.get("timeout", 10.0)
    arguments: dict[str, Any] = {
        "timeout": aiohttp.ClientTimeout(total=None, connect=timeout, sock_connect=timeout, sock_read=timeout),
        "allow_redirects": options.get("follow", True),
    }
    for name in ("headers", "json", "proxy"):
        if name in options:
            arguments[name] = options[name]
    if "verify" in options or "cert" in options:
        arguments["ssl"] = _tls(options.get("verify", True), options.get("cert"))
    if "content" in options:
        content: Any = options["content"]
        chunks: Any = content() if callable(content) else None
        arguments["data"] = _payload(options["content"]) if chunks is None else _as_async(chunks)
    if "form" in options:
        arguments["data"] = options["form"]
    if "files" in options:
        form = aiohttp.FormData()
        for field, upload in options["files"].items():
            form.add_field(field, upload.content, filename=upload.name, content_type=upload.content_type)
        arguments["data"] = form
    if "auth" in options:
        scheme, user, password = options["auth"]
        if scheme == "basic":
            known = {**options.get("headers", {}), "Authorization": aiohttp.encode_basic_auth(user, password)}
            arguments["headers"] = known
        else:
            arguments["middlewares"] = (aiohttp.DigestAuthMiddleware(user, password),)
    return arguments


def _tls(verify: bool | str, cert: str | None) -> bool | ssl.SSLContext:
    return verify if isinstance(verify, bool) and cert is None else _context(verify, cert)


def _version(version: Any) -> str:
    return "HTTP/2" if version.major == 2 else f"HTTP/{version.major}.{version.minor}"


def _payload(content: bytes) -> bytes | io.BytesIO:
    # aiohttp warns of large bytes: writing them at once would hold up its loop.
    return io.BytesIO(content) if len(content) > _LARGE else content


async def _as_async(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


FACES = (
    Face(
        name="aiohttp",
        stack="aiohttp",
        is_async=True,
        per_call=frozenset({"verify", "cert", "proxy"}),
        opener=_Session,
        native_class=lambda: importlib.import_module("aiohttp.client").ClientSession,
        netkit_class=lambda: importlib.import_module("netkit.aiohttp").ClientSession,
    ),
)
