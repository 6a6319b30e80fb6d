"""Every contender behind one small shape: the same four calls, written in each library's own way.

Rules of this file:

- A contender is imported when it is opened: a missing one hides no other, and none pays for another's memory.
- Plain peers get a pool as wide as the load: requests' ten and httpx's twenty kept connections would measure
  handshakes. Everything else is at its default.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "HEADERS",
    "PAYLOAD",
    "AsyncFace",
    "SyncFace",
    "open_async",
    "open_sync",
    "open_wireless",
    "open_wireless_tasks",
]

PAYLOAD = {"model": "m", "input": ["the quick brown fox jumps over the lazy dog"], "encoding_format": "float"}
HEADERS = {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"}
CONNECTIONS = 1100


@dataclass
class SyncFace:
    """`json()` posts the small payload, `upload(body)` posts bytes; both give the answer's body."""

    json: Callable[[], bytes]
    upload: Callable[[bytes], bytes]
    close: Callable[[], object]


@dataclass
class AsyncFace:
    """`stream(url, on_chunk)` reads an answer to its end; `hold(url)` returns at its first chunk with what keeps it
    open: an object, and a coroutine function that leaves it. `client` is the object behind it, where it has stats."""

    json: Callable[[], Awaitable[bytes]]
    upload: Callable[[bytes], Awaitable[bytes]]
    stream: Callable[[str, Callable[[bytes], object]], Awaitable[None]]
    hold: Callable[[str], Awaitable[tuple[Any, Callable[[], Awaitable[object]]]]]
    close: Callable[[], Awaitable[object]]
    client: Any = None


def open_sync(name: str, url: str, ca: str, **options: Any) -> SyncFace:
    """The contender `name`; `options` go to netkit's faces as `plugins`."""
    base, _, variant = name.partition("/")
    if base in ("requests", "netkit.Session"):
        return _requests(base, url, ca, trust_env=variant != "trust_env off", plugins=options)
    if base in ("httpx", "httpx2", "netkit.Client", "netkit.httpx2.Client"):
        return _httpx(base, url, ca, http2=variant == "http2", plugins=options)
    if base == "pyreqwest":
        return _pyreqwest(url, ca)
    if base == "bare engine":
        return _engine(url, ca)
    raise LookupError(f"no synchronous contender {name!r}")


async def open_async(
    name: str, url: str, ca: str, *, headers: Mapping[str, str] = HEADERS, **options: Any
) -> AsyncFace:
    """The contender `name`; `options` go to netkit's faces as `plugins`. `headers` go with every call of the stacks
    and of netkit's faces; an upload has no type of its own, and each stack's default differs."""
    base, _, variant = name.partition("/")
    if base in ("aiohttp", "netkit.ClientSession"):
        return _aiohttp(base, url, ca, plugins=options, headers=headers)
    if base in ("httpx", "httpx2", "netkit.AsyncClient", "netkit.httpx2.AsyncClient"):
        return _httpx_async(base, url, ca, http2=variant == "http2", plugins=options, headers=headers)
    if base == "pyreqwest":
        return _pyreqwest_async(url, ca)
    if base == "pyqwest":
        return _pyqwest_async(url, ca)
    if base == "bare engine":
        return await _engine_async(url, ca)
    raise LookupError(f"no asynchronous contender {name!r}")


def open_wireless(name: str, *, asynchronous: bool, **options: Any) -> Callable[[], bytes]:
    """One call of `name` over a transport that answers at once; a client of tasks is stepped, it never waits."""
    base = name.partition("/")[0]
    return (
        _requests_wireless(base, options)
        if base in ("requests", "netkit.Session")
        else _stepped(base, _httpx_wireless_tasks(base, options))
        if asynchronous
        else _httpx_wireless(base, options)
    )


def open_wireless_tasks(name: str, **options: Any) -> Callable[[], Coroutine[Any, Any, bytes]]:
    """As `open_wireless`, to be awaited in a loop."""
    return _httpx_wireless_tasks(name.partition("/")[0], options)


_ANSWER = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.0125,-0.25,0.5]}],"model":"m"}'
_FIELDS = {"content-type": "application/json", "content-length": str(len(_ANSWER)), "server": "none"}


def _requests_wireless(base: str, plugins: dict[str, Any]) -> Callable[[], bytes]:
    import io

    import requests
    from urllib3.response import HTTPResponse

    class Adapter(requests.adapters.HTTPAdapter):
        def send(self, request: Any, *args: Any, **kwargs: Any) -> requests.Response:
            raw = HTTPResponse(body=io.BytesIO(_ANSWER), headers=_FIELDS, status=200, preload_content=False)
            return self.build_response(request, raw)

    session: requests.Session
    if base == "requests":
        session = requests.Session()
    else:
        import netkit

        session = netkit.Session(plugins=plugins)
    session.trust_env = False
    session.headers.update(HEADERS)
    session.mount("http://", Adapter())
    return lambda: session.post("http://nowhere/v1/embeddings", json=PAYLOAD, timeout=60).content


def _httpx_wireless(base: str, plugins: dict[str, Any]) -> Callable[[], bytes]:
    stack, module, arguments = _httpx_module(base, plugins)

    class Transport(stack.BaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            return stack.Response(200, headers=_FIELDS, stream=stack.ByteStream(_ANSWER))

    client = module.Client(transport=Transport(), **arguments)

    def call() -> bytes:
        content: bytes = client.post("http://nowhere/v1/embeddings", json=PAYLOAD).content
        return content

    return call


def _httpx_wireless_tasks(base: str, plugins: dict[str, Any]) -> Callable[[], Coroutine[Any, Any, bytes]]:
    stack, module, arguments = _httpx_module(base, plugins)

    class Transport(stack.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            return stack.Response(200, headers=_FIELDS, stream=stack.ByteStream(_ANSWER))

    client = module.AsyncClient(transport=Transport(), **arguments)

    async def call() -> bytes:
        content: bytes = (await client.post("http://nowhere/v1/embeddings", json=PAYLOAD)).content
        return content

    return call


def _httpx_module(base: str, plugins: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The stack, the module that has the contender's clients, and their arguments."""
    import importlib

    stack: Any = importlib.import_module("httpx2" if "httpx2" in base else "httpx")
    arguments: dict[str, Any] = {"headers": HEADERS, "timeout": 60}
    if not base.startswith("netkit"):
        return stack, stack, arguments
    return stack, importlib.import_module(f"netkit.{stack.__name__}"), {**arguments, "plugins": plugins}


def _stepped(base: str, call: Callable[[], Coroutine[Any, Any, bytes]]) -> Callable[[], bytes]:
    def step() -> bytes:
        try:
            call().send(None)
        except StopIteration as stop:
            content: bytes = stop.value
            return content
        raise RuntimeError(f"{base} waited for something")

    return step


def _context(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def _requests(base: str, url: str, ca: str, *, trust_env: bool, plugins: dict[str, Any]) -> SyncFace:
    import requests
    from requests.adapters import HTTPAdapter

    session: requests.Session
    if base == "requests":
        session = requests.Session()
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    else:
        import netkit

        session = netkit.Session(plugins=plugins or None)
    session.verify = ca
    session.trust_env = trust_env
    session.headers.update(HEADERS)

    def post(**body: Any) -> bytes:
        response = session.post(url, timeout=60, **body)
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}")
        return response.content

    return SyncFace(lambda: post(json=PAYLOAD), lambda body: post(data=body), session.close)


def _httpx_client(
    base: str, ca: str, *, http2: bool, plugins: dict[str, Any], kind: str, headers: Mapping[str, str] = HEADERS
) -> Any:
    import importlib

    own = base.startswith("netkit")
    module = importlib.import_module(
        "netkit.httpx2" if base.startswith("netkit.httpx2") else "netkit.httpx" if own else base
    )
    arguments: dict[str, Any] = {"verify": _context(ca), "timeout": 60, "headers": headers}
    if own:
        arguments["plugins"] = plugins or None
    else:
        limits = module.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        arguments.update(limits=limits, http2=http2)
    return getattr(module, kind)(**arguments)


def _httpx(base: str, url: str, ca: str, *, http2: bool, plugins: dict[str, Any]) -> SyncFace:
    client = _httpx_client(base, ca, http2=http2, plugins=plugins, kind="Client")

    def post(**body: Any) -> bytes:
        response = client.post(url, **body)
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}")
        content: bytes = response.content
        return content

    return SyncFace(lambda: post(json=PAYLOAD), lambda body: post(content=body), client.close)


def _httpx_async(
    base: str, url: str, ca: str, *, http2: bool, plugins: dict[str, Any], headers: Mapping[str, str]
) -> AsyncFace:
    client = _httpx_client(base, ca, http2=http2, plugins=plugins, kind="AsyncClient", headers=headers)

    async def post(**body: Any) -> bytes:
        response = await client.post(url, **body)
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}")
        content: bytes = response.content
        return content

    async def stream(target: str, on_chunk: Callable[[bytes], object]) -> None:
        async with client.stream("GET", target) as response:
            async for chunk in response.aiter_raw():
                on_chunk(chunk)

    async def hold(target: str) -> tuple[Any, Callable[[], Awaitable[object]]]:
        response = await client.send(client.build_request("GET", target), stream=True)
        # Whoever drops the iterator leaves the stream.
        chunks = response.aiter_raw()
        await anext(chunks)
        return (response, chunks), response.aclose

    return AsyncFace(lambda: post(json=PAYLOAD), lambda body: post(content=body), stream, hold, client.aclose, client)


def _aiohttp(base: str, url: str, ca: str, *, plugins: dict[str, Any], headers: Mapping[str, str]) -> AsyncFace:
    import aiohttp

    # Without a limit, aiohttp serves all callers at once; at its default of 100 most of them wait.
    connector = aiohttp.TCPConnector(ssl=_context(ca), limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    session: Any
    if base == "aiohttp":
        session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)
    else:
        import netkit

        session = netkit.ClientSession(connector=connector, headers=headers, timeout=timeout, plugins=plugins or None)

    async def post(**body: Any) -> bytes:
        async with session.post(url, **body) as response:
            if response.status != 200:
                raise RuntimeError(f"status {response.status}")
            content: bytes = await response.read()
            return content

    async def stream(target: str, on_chunk: Callable[[bytes], object]) -> None:
        async with session.get(target) as response:
            async for chunk in response.content.iter_any():
                on_chunk(chunk)

    async def hold(target: str) -> tuple[Any, Callable[[], Awaitable[object]]]:
        response = await session.get(target)
        await response.content.readany()

        async def leave() -> None:
            response.close()

        return response, leave

    return AsyncFace(lambda: post(json=PAYLOAD), lambda body: post(data=body), stream, hold, session.close, session)


def _pyreqwest(url: str, ca: str) -> SyncFace:
    from pathlib import Path

    from pyreqwest.client import SyncClientBuilder

    client = SyncClientBuilder().add_root_certificate_pem(Path(ca).read_bytes()).http2(True).build()
    client.__enter__()

    def finish(builder: Any) -> bytes:
        for name, value in HEADERS.items():
            builder = builder.header(name, value)
        response = builder.build().send()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}")
        return bytes(response.bytes())

    return SyncFace(
        lambda: finish(client.post(url).body_json(PAYLOAD)),
        lambda body: finish(client.post(url).body_bytes(body)),
        client.close,
    )


def _pyreqwest_async(url: str, ca: str) -> AsyncFace:
    from pathlib import Path

    from pyreqwest.client import ClientBuilder

    client = ClientBuilder().add_root_certificate_pem(Path(ca).read_bytes()).http2(True).build()

    def dressed(builder: Any) -> Any:
        for name, value in HEADERS.items():
            builder = builder.header(name, value)
        return builder

    async def finish(builder: Any) -> bytes:
        response = await dressed(builder).build().send()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}")
        return bytes(await response.bytes())

    def streamed(target: str) -> Any:
        # Its default holds events back until 64 KiB are there.
        return dressed(client.get(target)).streamed_read_buffer_limit(0).build_streamed()

    async def stream(target: str, on_chunk: Callable[[bytes], object]) -> None:
        async with streamed(target) as response:
            while (chunk := await response.body_reader.read_chunk()) is not None:
                on_chunk(bytes(chunk))

    async def hold(target: str) -> tuple[Any, Callable[[], Awaitable[object]]]:
        manager = streamed(target)
        response = await manager.__aenter__()
        await response.body_reader.read_chunk()
        return response, lambda: manager.__aexit__(None, None, None)

    return AsyncFace(
        lambda: finish(client.post(url).body_json(PAYLOAD)),
        lambda body: finish(client.post(url).body_bytes(body)),
        stream,
        hold,
        client.close,
    )


def _pyqwest_async(url: str, ca: str) -> AsyncFace:
    import json
    from pathlib import Path

    import pyqwest

    transport = pyqwest.HTTPTransport(tls_ca_cert=Path(ca).read_bytes())
    client = pyqwest.Client(transport)

    async def post(body: bytes, **headers: str) -> bytes:
        response = await client.post(url, headers={**HEADERS, **headers}, content=body)
        if response.status != 200:
            raise RuntimeError(f"status {response.status}")
        return bytes(response.content)

    async def stream(target: str, on_chunk: Callable[[bytes], object]) -> None:
        async with client.stream("GET", target, headers=HEADERS) as response:
            async for chunk in response.content:
                on_chunk(bytes(chunk))

    async def hold(target: str) -> tuple[Any, Callable[[], Awaitable[object]]]:
        manager = client.stream("GET", target, headers=HEADERS)
        response = await manager.__aenter__()
        chunks = aiter(response.content)
        await anext(chunks)
        return (response, chunks), lambda: manager.__aexit__(None, None, None)

    body = json.dumps(PAYLOAD).encode()
    return AsyncFace(lambda: post(body, **{"content-type": "application/json"}), post, stream, hold, transport.aclose)


def _maker(url: str, ca: str) -> Callable[..., Any]:
    from urllib.parse import urlsplit

    from netkit.http2 import ConnectSpec, H2Request

    context = _context(ca)
    context.set_alpn_protocols(["h2", "http/1.1"])
    parts = urlsplit(url)
    spec = ConnectSpec(parts.hostname or "", parts.port or 443, ssl=context)
    fields = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
    fields.append((b"content-type", b"application/json"))

    def make(method: bytes, path: str, body: bytes | None = None) -> H2Request:
        return H2Request(
            "bench", spec, method, parts.netloc.encode(), path.encode(), fields, body, read_timeout=60.0,
            body_size=None if body is None else len(body),
        )  # fmt: skip

    return make


def _payload() -> bytes:
    import json

    return json.dumps(PAYLOAD).encode()


def _engine(url: str, ca: str) -> SyncFace:
    from urllib.parse import urlsplit

    from netkit.http2 import Http1Only, Http2Options, SyncEngine

    make, path, small = _maker(url, ca), urlsplit(url).path, _payload()
    engine = SyncEngine(Http2Options(acquire_timeout=None))

    def post(body: bytes) -> bytes:
        exchange = engine.send(make(b"POST", path, body))
        if isinstance(exchange, Http1Only) or exchange.status != 200:
            raise RuntimeError(f"{exchange!r}")
        return exchange.read()

    return SyncFace(lambda: post(small), post, engine.close)


async def _engine_async(url: str, ca: str) -> AsyncFace:
    from urllib.parse import urlsplit

    from netkit.http2 import Engine, Http1Only, Http2Options

    make, path, small = _maker(url, ca), urlsplit(url).path, _payload()
    engine = Engine(Http2Options(acquire_timeout=None, max_connections=400))

    async def begin(method: bytes, target: str, body: bytes | None = None) -> Any:
        exchange = await engine.send(make(method, target, body))
        if isinstance(exchange, Http1Only) or exchange.status != 200:
            raise RuntimeError(f"{exchange!r}")
        return exchange

    async def post(body: bytes) -> bytes:
        return bytes(await (await begin(b"POST", path, body)).read())

    def relative(target: str) -> str:
        parts = urlsplit(target)
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    async def stream(target: str, on_chunk: Callable[[bytes], object]) -> None:
        exchange = await begin(b"GET", relative(target))
        while chunk := await exchange.read_chunk():
            on_chunk(chunk)

    async def hold(target: str) -> tuple[Any, Callable[[], Awaitable[object]]]:
        exchange = await begin(b"GET", relative(target))
        await exchange.read_chunk()

        async def leave() -> None:
            exchange.close()

        return exchange, leave

    return AsyncFace(lambda: post(small), post, stream, hold, engine.aclose)
