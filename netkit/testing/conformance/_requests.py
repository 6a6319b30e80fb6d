"""The face of requests."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from netkit.testing.conformance._session import Face, Observation, OpenOptions, Session, Stream

__all__ = ["FACES"]

_BLOCK = 64 * 1024


class _Stream(Stream):
    def __init__(self, response: Any) -> None:
        self.native = response
        self.status = response.status_code
        self._chunks = response.iter_content(_BLOCK)

    async def chunk(self) -> bytes:
        piece: bytes = next(self._chunks, b"")
        return piece

    async def close(self) -> None:
        self.native.close()


class _Session(Session):
    def __init__(self, kind: type[Any], arguments: Mapping[str, Any], options: OpenOptions) -> None:
        self.native = kind(**arguments)
        if "verify" in options:
            self.native.verify = options["verify"]
        if "cert" in options:
            self.native.cert = options["cert"]
        if "proxy" in options:
            self.native.proxies = {"http": options["proxy"], "https": options["proxy"]}

    async def request(self, method: str, url: str, **options: Any) -> Observation:
        response = self.native.request(method, url, **_arguments(options))
        return Observation(
            status=response.status_code,
            headers=tuple(response.raw.headers.items()),
            content=response.content,
            url=response.url,
            http_version="HTTP/1.1" if response.raw.version == 11 else f"HTTP/{response.raw.version // 10}",
            history=tuple((past.status_code, past.url) for past in response.history),
            cookies=dict(self.native.cookies),
            elapsed=response.elapsed,
        )

    async def open_stream(self, method: str, url: str, **options: Any) -> Stream:
        return _Stream(self.native.request(method, url, stream=True, **_arguments(options)))

    async def close(self) -> None:
        self.native.close()


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    from requests.auth import HTTPBasicAuth, HTTPDigestAuth

    arguments: dict[str, Any] = {"timeout": options.get("timeout", 10.0)}
    arguments["allow_redirects"] = options.get("follow", True)
    for name in ("headers", "json", "verify", "cert"):
        if name in options:
            arguments[name] = options[name]
    if "content" in options:
        content = options["content"]
        arguments["data"] = content() if callable(content) else content
    if "form" in options:
        arguments["data"] = options["form"]
    if "files" in options:
        arguments["files"] = {field: tuple(upload) for field, upload in options["files"].items()}
    if "proxy" in options:
        arguments["proxies"] = {"http": options["proxy"], "https": options["proxy"]}
    if "auth" in options:
        scheme, user, password = options["auth"]
        arguments["auth"] = (HTTPBasicAuth if scheme == "basic" else HTTPDigestAuth)(user, password)
    return arguments


FACES = (
    Face(
        name="requests",
        stack="requests",
        is_async=False,
        per_call=frozenset({"verify", "cert", "proxy"}),
        opener=_Session,
        native_class=lambda: importlib.import_module("requests.sessions").Session,
        netkit_class=lambda: importlib.import_module("netkit.requests").Session,
    ),
)
