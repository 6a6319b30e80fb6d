"""`netkit.Session`: a `requests.Session` whose every hop passes netkit's chain.

Rules of this file:

- Where nobody has changed `Session.send` or what it calls, `dispatch` does its part; elsewhere it runs unchanged, and
  only finds a chained adapter where it asks for one.
- Everything netkit keeps on a session can be rebuilt from its settings: copies and pickles carry those alone.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import requests
from requests import Session as Base

from netkit.edge import Edge
from netkit.jars import JarAfterFork
from netkit.runtime import Threads
from netkit_adapters.requests import environment
from netkit_adapters.requests.dispatch import dispatch, may_dispatch
from netkit_adapters.requests.http2 import RequestsHttp2
from netkit_adapters.requests.pool import RequestsPool
from netkit_adapters.requests.prepare import CHECKED, is_untouched, merge, prepare
from netkit_adapters.requests.transport import Wiring, chained, terminal
from netkit_adapters.reverted import REVERTED, native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from requests.adapters import BaseAdapter

    from netkit.config import Config, PluginSettings

__all__ = ["Session", "adopt", "attach", "detach", "edge_of", "release"]

_threads = Threads()
_BASE_REQUEST = Base.request
_BASE_SEND = Base.send
_BASE_SEND_CODE = Base.send.__code__


def _wire(
    session: Base, plugins: Mapping[str, PluginSettings] | None, config: Config | str | None, pick: Any
) -> Wiring:
    pool = RequestsPool()
    edge = Edge(
        stack="requests",
        runtime=_threads,
        terminal=terminal,
        plugins=plugins,
        config=config,
        pool=pool,
        http2=RequestsHttp2(),
    )
    return Wiring(edge, pool, pick, JarAfterFork(session, _jar_of))


def _jar_of(session: Base) -> Any:
    return session.__dict__.get("cookies")


class _SendView:
    """`Session.send` runs with this in place of the session: every attribute is the session's, but `get_adapter`
    gives the adapter with the chain around it."""

    def __init__(self, session: Session, wiring: Wiring) -> None:
        object.__setattr__(self, "_netkit_target", (session, wiring))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # `super()` in a send of a class between netkit's and requests' asks for it.
        return type(self._netkit_target[0])

    def get_adapter(self, url: str) -> BaseAdapter:
        session, wiring = self._netkit_target
        return chained(wiring, session.get_adapter(url=url))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_netkit_target")[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        # requests-mock puts its own get_adapter and send on what it takes for the session.
        if name in ("get_adapter", "send"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._netkit_target[0], name, value)


class Session(Base):
    """A `requests.Session` with netkit inside. Takes the same (no) arguments, and two more.

    Example::

        session = netkit.Session(plugins={"retry": {"attempts": 5}})
        session.post(url, json=payload, timeout=30)

    `plugins` maps names to True (on, with its defaults), False (off) or a table of options; it comes on top of the
    project's configuration. `config` is a path, a `netkit.Config`, or None for the nearest pyproject.toml.
    Raises `ConfigError` for anything that is wrong in either, before any request is made.
    """

    __attrs__ = [*Base.__attrs__, "_netkit_settings"]

    _netkit_settings: tuple[Any, Any] = (None, None)

    def __init__(
        self,
        *args: Any,
        plugins: Mapping[str, PluginSettings] | None = None,
        config: Config | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._netkit_settings = (plugins, config)
        self._netkit_start()

    def _netkit_start(self, before: Wiring | None = None) -> Wiring:
        plugins, config = self._netkit_settings
        wiring = _wire(self, plugins, config, lambda url: self.get_adapter(url))
        if before is not None:
            wiring.succeed(before)
        else:
            for adapter in self.__dict__.get("adapters", {}).values():
                wiring.pool.own(adapter)
        self.__dict__["_netkit_wired"] = wiring
        return wiring

    def _netkit_restart(self, settings: tuple[Any, Any]) -> None:
        """Go on with other settings: connections and counts are kept, layers are made anew."""
        before, old = self._netkit_settings, self._netkit_wiring
        self._netkit_settings = settings
        try:
            self._netkit_start(old)
        except BaseException:
            self._netkit_settings = before
            raise

    @property
    def _netkit_wiring(self) -> Wiring:
        # A copy, a pickle or a subclass that skips __init__ gets here without one.
        wiring = self.__dict__.get("_netkit_wired")
        return self._netkit_start() if wiring is None else wiring

    def request(
        self,
        method: str,
        url: Any,
        params: Any = None,
        data: Any = None,
        headers: Any = None,
        cookies: Any = None,
        files: Any = None,
        auth: Any = None,
        timeout: Any = None,
        allow_redirects: bool = True,
        proxies: Any = None,
        hooks: Any = None,
        stream: Any = None,
        verify: Any = None,
        cert: Any = None,
        json: Any = None,
    ) -> requests.Response:
        """As `requests.Session.request`, with the same arguments."""
        reverted = False
        try:
            request = super().request
        except REVERTED:
            request, reverted = native(self, Session, Base).request, True
        if (
            reverted
            or getattr(request, "__func__", None) is not _BASE_REQUEST
            or type(url) is not str
            or type(method) is not str
            or url[:4] != "http"
            or not is_untouched(self)
        ):
            return request(
                method, url, params, data, headers, cookies, files, auth, timeout, allow_redirects, proxies, hooks,
                stream, verify, cert, json,
            )  # fmt: skip
        trusts = self.trust_env
        silent = not trusts or environment.is_silent()
        prepared = prepare(
            self,
            method,
            url,
            params=params,
            data=data,
            headers=headers,
            cookies=cookies,
            files=files,
            auth=auth,
            hooks=hooks,
            json=json,
            trusts_environment=trusts,
            silent=silent,
        )
        if not silent or proxies or self.proxies or type(self.proxies) is not dict:
            settings = self.merge_environment_settings(prepared.url, proxies or {}, stream, verify, cert)  # type: ignore[arg-type]
            return self.send(prepared, timeout=timeout, allow_redirects=allow_redirects, **settings)
        return self.send(
            prepared,
            timeout=timeout,
            allow_redirects=allow_redirects,
            proxies=OrderedDict(),
            stream=merge(stream, self.stream),
            verify=merge(verify, self.verify),
            cert=merge(cert, self.cert),
        )

    def get_adapter(self, url: str) -> BaseAdapter:
        asked_to_send = sys._getframe(1).f_code is _BASE_SEND_CODE
        adapter: BaseAdapter
        try:
            pick, wiring = super().get_adapter, self._netkit_wiring if asked_to_send else None
        except REVERTED:
            adapter = native(self, Session, Base).get_adapter(url=url)
            return adapter
        adapter = pick(url=url)
        return adapter if wiring is None else chained(wiring, adapter)

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        response: requests.Response
        try:
            send, wiring = super().send, self._netkit_wiring
        except REVERTED:
            response = native(self, Session, Base).send(request, **kwargs)
            return response
        function = getattr(send, "__func__", None)
        if function is None:
            # Someone put a plain callable (a mock) in the class: that is what gets called.
            return send(request, **kwargs)
        if (
            function is _BASE_SEND
            and type(self).get_adapter is Session.get_adapter
            and "get_adapter" not in self.__dict__
        ):
            # Nobody stands between: requests' own send asks netkit's own get_adapter, which knows who asks.
            if may_dispatch(self, request):
                return dispatch(self, wiring, request, kwargs)
            return send(request, **kwargs)
        response = function(_SendView(self, wiring), request, **kwargs)
        return response

    def close(self) -> None:
        try:
            close = super().close
        except REVERTED:
            close = native(self, Session, Base).close
        close()
        wiring = self.__dict__.get("_netkit_wired")
        if wiring is not None:
            wiring.edge.close()


class _AttachedGetAdapter:
    """Takes the place of one session's `get_adapter`; hands out the same adapters with the chain around them."""

    def __init__(self, session: Base, settings: tuple[Any, Any]) -> None:
        self.previous = session.__dict__.get("get_adapter")
        self.original = session.get_adapter
        self.settings = settings
        self.wiring = _wire(session, *settings, self.original)

    def __call__(self, url: str) -> BaseAdapter:
        return chained(self.wiring, self.original(url=url))


def attach(
    session: Base,
    *,
    plugins: Mapping[str, PluginSettings] | None = None,
    config: Config | str | None = None,
) -> Base:
    """Put netkit into an existing session; returns it. See `netkit.attach`."""
    settings = (plugins, config)
    if isinstance(session, Session):
        if session._netkit_settings != settings:
            session._netkit_restart(settings)
        return session
    present = session.__dict__.get("get_adapter")
    if isinstance(present, _AttachedGetAdapter):
        if present.settings == settings:
            return session
        _put_back(session, present)
    try:
        attached = _AttachedGetAdapter(session, settings)
    except BaseException:
        if isinstance(present, _AttachedGetAdapter):
            session.get_adapter = present  # type: ignore[method-assign] # as it was: the new settings are wrong
        raise
    if isinstance(present, _AttachedGetAdapter):
        attached.wiring.succeed(present.wiring)
    session.get_adapter = attached  # type: ignore[method-assign]
    return session


def _put_back(session: Base, attached: _AttachedGetAdapter) -> None:
    if attached.previous is None:
        del session.get_adapter
    else:
        session.get_adapter = attached.previous  # type: ignore[method-assign]


def detach(session: Base) -> None:
    """Take netkit out of a session to which it was attached."""
    present = session.__dict__.get("get_adapter")
    if not isinstance(present, _AttachedGetAdapter):
        if isinstance(session, Session):
            raise TypeError("a netkit.Session cannot be detached: use requests.Session instead")
        return
    _put_back(session, present)
    present.wiring.pool.release()
    present.wiring.edge.close()


def adopt(session: Session) -> None:
    """Set up a session that has become one of netkit's by a change of its class (`netkit.install`)."""
    session._netkit_start()


def release(session: Session) -> None:
    """Undo `adopt`, before the class is changed back."""
    wiring: Wiring | None = session.__dict__.pop("_netkit_wired", None)
    for name in ("_netkit_settings", CHECKED):
        session.__dict__.pop(name, None)
    if wiring is not None:
        # Other threads may be in the middle of a call. What netkit holds open goes with the last of them.
        wiring.pool.release()


def edge_of(session: Base) -> Edge:
    """The netkit side of a session. TypeError when it has none."""
    if isinstance(session, Session):
        return session._netkit_wiring.edge
    present = session.__dict__.get("get_adapter")
    if isinstance(present, _AttachedGetAdapter):
        return present.wiring.edge
    raise TypeError(f"netkit is not attached to this {type(session).__name__}")
