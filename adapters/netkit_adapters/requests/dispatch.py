"""What `requests.Session.send` does around the adapter, for sessions in which nobody has changed any of it.

Rules of this file:

- The order is requests': defaults, adapter, time, hooks, cookies, redirects, content.
- What an answer that is no redirect does not need is not begun. A redirect goes through requests' own
  `resolve_redirects`, and with it every hop through `Session.send`.
"""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

from requests import Session, models, sessions
from requests.models import PreparedRequest, Response

from netkit_adapters.requests.transport import chained

if TYPE_CHECKING:
    from netkit_adapters.requests.transport import Wiring

__all__ = ["dispatch", "may_dispatch"]

_sessions: Any = sessions
_in_sessions: Final = itemgetter("dispatch_hook", "extract_cookies_to_jar", "preferred_clock", "timedelta", "Request")
_in_session: Final = attrgetter("resolve_redirects", "get_redirect_target")
_OF_INSTANCES: Final = ("resolve_redirects", "get_redirect_target")
_SEAMS: Final = _in_sessions(_sessions.__dict__)
_OWN: Final = _in_session(Session)
_IS_REDIRECT: Final = Response.is_redirect
_clock: Final = _sessions.preferred_clock


def may_dispatch(session: Session, request: PreparedRequest) -> bool:
    """Whether requests' handling of answers is its own, in this session, its class, and requests itself; and
    `request` is what may be sent."""
    own = session.__dict__
    return (
        type(request) is PreparedRequest
        and request.url is not None
        and _in_session(type(session)) == _OWN
        and _OF_INSTANCES[0] not in own
        and _OF_INSTANCES[1] not in own
        and _in_sessions(_sessions.__dict__) == _SEAMS
        and Response.is_redirect is _IS_REDIRECT
    )


def dispatch(session: Session, wiring: Wiring, request: PreparedRequest, kwargs: dict[str, Any]) -> Response:
    """Send `request` over the session's adapter, with the chain around it; returns what `Session.send` returns."""
    if "stream" not in kwargs:
        kwargs["stream"] = session.stream
    if "verify" not in kwargs:
        kwargs["verify"] = session.verify
    if "cert" not in kwargs:
        kwargs["cert"] = session.cert
    if "proxies" not in kwargs:
        kwargs["proxies"] = _sessions.resolve_proxies(request, session.proxies, session.trust_env)
    hooks = request.hooks
    allow_redirects = kwargs.pop("allow_redirects", True)
    adapter: Any = chained(wiring, session.get_adapter(url=request.url))  # type: ignore[arg-type]
    started = _clock()
    response: Response = adapter.send(request, **kwargs)
    response.elapsed = timedelta(seconds=_clock() - started)
    if hooks and hooks.get("response"):
        response = _sessions.dispatch_hook("response", hooks, response, **kwargs)
    if response.history:
        for earlier in response.history:
            _sessions.extract_cookies_to_jar(session.cookies, earlier.request, earlier.raw)
    raw = response.raw
    if getattr(raw, "_original_response", None):
        _sessions.extract_cookies_to_jar(session.cookies, request, raw)
    may_redirect = type(response) is not Response or response.status_code in models.REDIRECT_STATI
    if may_redirect and session.get_redirect_target(response):
        response = _redirect(session, response, request, allow_redirects, kwargs)
    if not kwargs["stream"]:
        response.content  # noqa: B018 - reading it is what was asked for
    return response


def _redirect(
    session: Session, response: Response, request: PreparedRequest, follow: bool, kwargs: dict[str, Any]
) -> Response:
    if not follow:
        response._next = next(session.resolve_redirects(response, request, yield_requests=True, **kwargs), None)  # type: ignore[assignment]
        return response
    history = [response, *session.resolve_redirects(response, request, **kwargs)]
    last = history.pop()
    last.history = history
    return last
