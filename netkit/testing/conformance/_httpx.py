"""The faces of httpx and httpx2: one implementation, as their interfaces are one."""

from __future__ import annotations

import importlib
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cache, partial
from typing import Any

from netkit.testing.conformance._session import Face, Observation, OpenOptions, Session, Stream

__all__ = ["FACES"]


class _SyncStream(Stream):
    def __init__(self, response: Any) -> None:
        self.native = response
        self.status = response.status_code
        self._chunks = response.iter_bytes()

    async def chunk(self) -> bytes:
        piece: bytes = next(self._chunks, b"")
        return piece

    async def close(self) -> None:
        self.native.close()


class _AsyncStream(Stream):
    def __init__(self, response: Any) -> None:
        self.native = response
        self.status = response.status_code
        self._chunks = response.aiter_bytes()

    async def chunk(self) -> bytes:
        piece: bytes = await anext(self._chunks, b"")
        return piece

    async def close(self) -> None:
        # As the caller's own `async for` would: a suspended generator is closed before its response.
        await self._chunks.aclose()
        await self.native.aclose()


class _Session(Session):
    """What sync and async have in common."""

    def __init__(self, package: str, kind: type[Any], arguments: Mapping[str, Any], options: OpenOptions) -> None:
        self._package = importlib.import_module(package)
        verify = options.get("verify", True)
        extra: dict[str, Any] = {"verify": _context(verify, options.get("cert"))}
        if "proxy" in options:
            extra["proxy"] = options["proxy"]
        self.native = kind(**arguments, **extra)

    def _build(self, method: str, url: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        building: dict[str, Any] = {"timeout": options.get("timeout", 10.0)}
        for name in ("headers", "json"):
            if name in options:
                building[name] = options[name]
        if "content" in options:
            building["content"] = self._content(options["content"])
        if "form" in options:
            building["data"] = options["form"]
        if "files" in options:
            building["files"] = {field: tuple(upload) for field, upload in options["files"].items()}
        sending: dict[str, Any] = {"follow_redirects": options.get("follow", True)}
        if "auth" in options:
            scheme, user, password = options["auth"]
            kind = self._package.BasicAuth if scheme == "basic" else self._package.DigestAuth
            sending["auth"] = kind(user, password)
        return self.native.build_request(method, url, **building), sending

    def _content(self, content: Any) -> Any:
        return content() if callable(content) else content

    def _observe(self, response: Any) -> Observation:
        return Observation(
            status=response.status_code,
            headers=tuple(response.headers.multi_items()),
            content=response.content,
            url=str(response.url),
            http_version=response.http_version,
            history=tuple((past.status_code, str(past.url)) for past in response.history),
            cookies=dict(self.native.cookies),
            elapsed=response.elapsed,
        )


class _SyncSession(_Session):
    async def request(self, method: str, url: str, **options: Any) -> Observation:
        request, sending = self._build(method, url, options)
        return self._observe(self.native.send(request, **sending))

    async def open_stream(self, method: str, url: str, **options: Any) -> Stream:
        request, sending = self._build(method, url, options)
        return _SyncStream(self.native.send(request, stream=True, **sending))

    async def close(self) -> None:
        self.native.close()


class _AsyncSession(_Session):
    async def request(self, method: str, url: str, **options: Any) -> Observation:
        request, sending = self._build(method, url, options)
        return self._observe(await self.native.send(request, **sending))

    async def open_stream(self, method: str, url: str, **options: Any) -> Stream:
        request, sending = self._build(method, url, options)
        return _AsyncStream(await self.native.send(request, stream=True, **sending))

    async def close(self) -> None:
        await self.native.aclose()

    def _content(self, content: Any) -> Any:
        if not callable(content):
            return content
        chunks: Any = content()
        return _as_async(chunks)


async def _as_async(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@cache
def _context(verify: bool | str, cert: str | None) -> ssl.SSLContext:
    """One context for each setting: making one takes longer than most calls here."""
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert is not None:
        context.load_cert_chain(cert)
    return context


def _faces(package: str) -> tuple[Face, Face]:
    def face(name: str, kind: str, opener: type[_Session], is_async: bool) -> Face:
        return Face(
            name=name,
            stack=package,
            is_async=is_async,
            per_call=frozenset(),
            opener=partial(opener, package),
            native_class=lambda: getattr(importlib.import_module(package), kind),
            netkit_class=lambda: getattr(importlib.import_module(f"netkit.{package}"), kind),
        )

    return (
        face(package, "Client", _SyncSession, False),
        face(f"{package}-async", "AsyncClient", _AsyncSession, True),
    )


FACES = (*_faces("httpx"), *_faces("httpx2"))
