"""`Client` and `AsyncClient` of httpx2 with netkit inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import httpx2
from httpx2 import AsyncClient as BaseAsyncClient
from httpx2 import Client as BaseClient

from netkit_adapters.httpx.building import Builder, signed_as
from netkit_adapters.httpx.chain import Shapes, View, Wiring, async_counted, counted
from netkit_adapters.httpx.clients import Attaching, remember, rewire
from netkit_adapters.httpx.stack import Stack
from netkit_adapters.httpx2.errors import FACES, KINDS
from netkit_adapters.reverted import REVERTED, native

if TYPE_CHECKING:
    from netkit.config import Config, PluginSettings
    from netkit_adapters.httpx.urls import MergedUrls

__all__ = ["ATTACHING", "SHAPES", "AsyncClient", "Client"]

SHAPES: Final = Shapes(Stack.of(httpx2, FACES, KINDS))


class Client(BaseClient):
    """An `httpx2.Client` with netkit inside. Takes the same arguments, and two more.

    Example::

        client = netkit.Client(plugins={"retry": {"attempts": 5}}, timeout=30)
        client.post(url, json=payload)

    `plugins` maps names to True (on, with its defaults), False (off) or a table of options; it comes on top of the
    project's configuration. `config` is a path, a `netkit.Config`, or None for the nearest pyproject.toml.
    Raises `ConfigError` for anything that is wrong in either, before any request is made.
    """

    _netkit_limits: bool | None
    _netkit_supplied: tuple[Any, ...]
    # None while `netkit.install()` is at work on a client that other threads use: it is native then.
    _netkit_urls: MergedUrls | None = None
    _netkit_builder: Builder | None = None
    _netkit_wiring: Wiring | None = None

    def __init__(
        self,
        *args: Any,
        plugins: Mapping[str, PluginSettings] | None = None,
        config: Config | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        remember(SHAPES, self, kwargs)
        self._netkit_configure((plugins, config))

    def _netkit_configure(self, settings: tuple[Any, Any]) -> None:
        if self.__dict__.get("_netkit_settings") == settings:
            return
        plugins, config = settings
        self._netkit_wiring = rewire(
            SHAPES, self, plugins, config, explicit_limits=self._netkit_limits, supplied=self._netkit_supplied
        )
        self._netkit_settings = settings

    @signed_as(BaseClient.build_request)
    def build_request(self, method: Any, url: Any, **options: Any) -> Any:
        try:
            builder, build = self._netkit_builder, super().build_request
        except REVERTED:
            return native(self, Client, BaseClient).build_request(method, url, **options)
        return build(method, url, **options) if builder is None else builder.build(self, build, method, url, options)

    @signed_as(BaseClient.send)
    def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        try:
            send, single, wiring = super().send, super()._send_single_request, self._netkit_wiring
        except REVERTED:
            return native(self, Client, BaseClient).send(request, stream=stream, **options)
        reading, dispatch = SHAPES.reading, SHAPES.dispatch[0]
        if stream or not reading.applies(send, asynchronous=False):
            return send(request, stream=stream, **options)
        response: Any
        if wiring is None or wiring.is_bare or not dispatch.applies(self, Client, single, request, options):
            response = send(request, stream=True, **options)
        else:
            response = dispatch.send(self, wiring, request, options)
        try:
            if reading.take(response, asynchronous=False):
                response.stream.close()
            else:
                response.read()
        except BaseException:
            response.close()
            raise
        return response

    def _merge_url(self, url: Any) -> Any:
        try:
            urls, merge = self._netkit_urls, super()._merge_url
        except REVERTED:
            return native(self, Client, BaseClient)._merge_url(url)
        return merge(url) if urls is None else urls.find(self.base_url, url, merge)

    def _build_request_auth(self, request: Any, auth: Any = httpx2.USE_CLIENT_DEFAULT) -> Any:
        try:
            build, wiring = super()._build_request_auth, self._netkit_wiring
        except REVERTED:
            return native(self, Client, BaseClient)._build_request_auth(request, auth)
        found = build(request, auth)
        if type(found) is not httpx2.Auth and wiring is not None:
            wiring.found_auths.note(request, found)
        return found

    def _send_single_request(self, request: httpx2.Request) -> httpx2.Response:
        response: httpx2.Response
        try:
            wiring, single = self._netkit_wiring, super()._send_single_request
            bare = wiring is not None and wiring.is_bare
            if wiring is not None and not bare:
                view: Any = View(self, wiring)
                single = super(Client, view)._send_single_request
        except REVERTED:
            response = native(self, Client, BaseClient)._send_single_request(request)
            return response
        response = counted(wiring, single, request) if wiring is not None and bare else single(request)
        return response

    def close(self) -> None:
        try:
            close, wiring = super().close, self._netkit_wiring
        except REVERTED:
            close, wiring = native(self, Client, BaseClient).close, None
        close()
        if wiring is not None:
            wiring.pool.close()
            wiring.edge.close()

    def __exit__(self, *args: Any) -> None:
        try:
            close, wiring = super().__exit__, self._netkit_wiring
        except REVERTED:
            close, wiring = native(self, Client, BaseClient).__exit__, None
        close(*args)
        if wiring is not None:
            wiring.pool.close()
            wiring.edge.close()


class AsyncClient(BaseAsyncClient):
    """An `httpx2.AsyncClient` with netkit inside. Takes the same arguments, and those that `Client` adds.

    Runs on asyncio and trio. One client serves several loops, one after the other or at once.
    """

    _netkit_limits: bool | None
    _netkit_supplied: tuple[Any, ...]
    # None while `netkit.install()` is at work on a client that other threads use: it is native then.
    _netkit_urls: MergedUrls | None = None
    _netkit_builder: Builder | None = None
    _netkit_wiring: Wiring | None = None

    def __init__(
        self,
        *args: Any,
        plugins: Mapping[str, PluginSettings] | None = None,
        config: Config | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        remember(SHAPES, self, kwargs)
        self._netkit_configure((plugins, config))

    def _netkit_configure(self, settings: tuple[Any, Any]) -> None:
        if self.__dict__.get("_netkit_settings") == settings:
            return
        plugins, config = settings
        self._netkit_wiring = rewire(
            SHAPES, self, plugins, config, explicit_limits=self._netkit_limits, supplied=self._netkit_supplied
        )
        self._netkit_settings = settings

    @signed_as(BaseAsyncClient.build_request)
    def build_request(self, method: Any, url: Any, **options: Any) -> Any:
        try:
            builder, build = self._netkit_builder, super().build_request
        except REVERTED:
            return native(self, AsyncClient, BaseAsyncClient).build_request(method, url, **options)
        return build(method, url, **options) if builder is None else builder.build(self, build, method, url, options)

    @signed_as(BaseAsyncClient.send)
    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        try:
            send, single, wiring = super().send, super()._send_single_request, self._netkit_wiring
        except REVERTED:
            return await native(self, AsyncClient, BaseAsyncClient).send(request, stream=stream, **options)
        reading, dispatch = SHAPES.reading, SHAPES.dispatch[1]
        if stream or not reading.applies(send, asynchronous=True):
            return await send(request, stream=stream, **options)
        response: Any
        if wiring is None or wiring.is_bare or not dispatch.applies(self, AsyncClient, single, request, options):
            response = await send(request, stream=True, **options)
        else:
            response = await dispatch.asend(self, wiring, request, options)
        try:
            if reading.take(response, asynchronous=True):
                await response.stream.aclose()
            else:
                await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response

    def _merge_url(self, url: Any) -> Any:
        try:
            urls, merge = self._netkit_urls, super()._merge_url
        except REVERTED:
            return native(self, AsyncClient, BaseAsyncClient)._merge_url(url)
        return merge(url) if urls is None else urls.find(self.base_url, url, merge)

    def _build_request_auth(self, request: Any, auth: Any = httpx2.USE_CLIENT_DEFAULT) -> Any:
        try:
            build, wiring = super()._build_request_auth, self._netkit_wiring
        except REVERTED:
            return native(self, AsyncClient, BaseAsyncClient)._build_request_auth(request, auth)
        found = build(request, auth)
        if type(found) is not httpx2.Auth and wiring is not None:
            wiring.found_auths.note(request, found)
        return found

    async def _send_single_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            wiring, single = self._netkit_wiring, super()._send_single_request
        except REVERTED:
            wiring, single = None, native(self, AsyncClient, BaseAsyncClient)._send_single_request
        response: httpx2.Response
        if wiring is None:
            response = await single(request)
            return response
        if wiring.is_bare and (wiring.pool.loops.is_home() or await wiring.pool.loops.come_home()):
            response = await async_counted(wiring, single, request)
            return response
        view: Any = View(self, wiring)
        try:
            single = super(AsyncClient, view)._send_single_request
        except REVERTED:
            single = native(self, AsyncClient, BaseAsyncClient)._send_single_request
        response = await single(request)
        return response

    async def aclose(self) -> None:
        try:
            close, wiring = super().aclose, self._netkit_wiring
        except REVERTED:
            close, wiring = native(self, AsyncClient, BaseAsyncClient).aclose, None
        await close()
        if wiring is not None:
            await wiring.pool.aclose()
            wiring.edge.close()

    async def __aexit__(self, *args: Any) -> None:
        try:
            close, wiring = super().__aexit__, self._netkit_wiring
        except REVERTED:
            close, wiring = native(self, AsyncClient, BaseAsyncClient).__aexit__, None
        await close(*args)
        if wiring is not None:
            await wiring.pool.aclose()
            wiring.edge.close()


ATTACHING: Final = Attaching(SHAPES, (Client, AsyncClient))
