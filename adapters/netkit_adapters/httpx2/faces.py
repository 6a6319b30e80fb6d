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
    # None while `netkit.install()` or `uninstall()` is at work on a client that other threads use: it is native then.
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
        builder, build = self._netkit_builder, super().build_request
        return build(method, url, **options) if builder is None else builder.build(self, build, method, url, options)

    @signed_as(BaseClient.send)
    def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        send, single, reading = super().send, super()._send_single_request, SHAPES.reading
        if stream or not reading.applies(send, asynchronous=False):
            return send(request, stream=stream, **options)
        response: Any
        wiring, dispatch = self._netkit_wiring, SHAPES.dispatch[0]
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
        urls, merge = self._netkit_urls, super()._merge_url
        return merge(url) if urls is None else urls.find(self.base_url, url, merge)

    def _build_request_auth(self, request: Any, auth: Any = httpx2.USE_CLIENT_DEFAULT) -> Any:
        found = super()._build_request_auth(request, auth)
        if type(found) is not httpx2.Auth and (wiring := self._netkit_wiring) is not None:
            wiring.found_auths.note(request, found)
        return found

    def _send_single_request(self, request: httpx2.Request) -> httpx2.Response:
        wiring = self._netkit_wiring
        if wiring is None:
            return super()._send_single_request(request)
        if wiring.is_bare:
            response: httpx2.Response = counted(wiring, super()._send_single_request, request)
            return response
        view: Any = View(self, wiring)
        return super(Client, view)._send_single_request(request)

    def close(self) -> None:
        super().close()
        if (wiring := self._netkit_wiring) is not None:
            wiring.pool.close()
            wiring.edge.close()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        if (wiring := self._netkit_wiring) is not None:
            wiring.pool.close()
            wiring.edge.close()


class AsyncClient(BaseAsyncClient):
    """An `httpx2.AsyncClient` with netkit inside. Takes the same arguments, and those that `Client` adds.

    Runs on asyncio and trio. One client serves several loops, one after the other or at once.
    """

    _netkit_limits: bool | None
    _netkit_supplied: tuple[Any, ...]
    # None while `netkit.install()` or `uninstall()` is at work on a client that other threads use: it is native then.
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
        builder, build = self._netkit_builder, super().build_request
        return build(method, url, **options) if builder is None else builder.build(self, build, method, url, options)

    @signed_as(BaseAsyncClient.send)
    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        send, single, reading = super().send, super()._send_single_request, SHAPES.reading
        if stream or not reading.applies(send, asynchronous=True):
            return await send(request, stream=stream, **options)
        response: Any
        wiring, dispatch = self._netkit_wiring, SHAPES.dispatch[1]
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
        urls, merge = self._netkit_urls, super()._merge_url
        return merge(url) if urls is None else urls.find(self.base_url, url, merge)

    def _build_request_auth(self, request: Any, auth: Any = httpx2.USE_CLIENT_DEFAULT) -> Any:
        found = super()._build_request_auth(request, auth)
        if type(found) is not httpx2.Auth and (wiring := self._netkit_wiring) is not None:
            wiring.found_auths.note(request, found)
        return found

    async def _send_single_request(self, request: httpx2.Request) -> httpx2.Response:
        wiring = self._netkit_wiring
        if wiring is None:
            return await super()._send_single_request(request)
        if wiring.is_bare and (wiring.pool.loops.is_home() or await wiring.pool.loops.come_home()):
            response: httpx2.Response = await async_counted(wiring, super()._send_single_request, request)
            return response
        view: Any = View(self, wiring)
        return await super(AsyncClient, view)._send_single_request(request)

    async def aclose(self) -> None:
        await super().aclose()
        if (wiring := self._netkit_wiring) is not None:
            await wiring.pool.aclose()
            wiring.edge.close()

    async def __aexit__(self, *args: Any) -> None:
        await super().__aexit__(*args)
        if (wiring := self._netkit_wiring) is not None:
            await wiring.pool.aclose()
            wiring.edge.close()


ATTACHING: Final = Attaching(SHAPES, (Client, AsyncClient))
