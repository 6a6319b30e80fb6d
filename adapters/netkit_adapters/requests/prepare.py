"""Preparing a request as `Session.request` does, without working out again what cannot have changed since last time.

Why: of the microseconds that requests spends on a small call, most go into merging and checking the same session
headers, parsing the same URL and running an empty cookie jar through `http.cookiejar`.

Rules of this file:

- The outcome is requests' own, field by field; a test compares them over generated requests.
- Only pure functions of their input are remembered: URL → prepared URL, session headers → checked headers. The
  headers are compared anew for each request, object by object.
- Anything out of the ordinary in one part (parameters, form data, files, cookies, auth, hooks) is prepared by
  requests' own method for that part. Where requests was patched or overridden, `is_untouched` is False, and none of
  this is used.
"""

from __future__ import annotations

import json as standard_json
from collections import OrderedDict
from http.cookiejar import CookieJar
from operator import attrgetter, itemgetter
from typing import Any, Final
from urllib.parse import urlparse

from requests import Session, cookies, models, sessions
from requests.auth import HTTPBasicAuth
from requests.cookies import RequestsCookieJar
from requests.exceptions import InvalidHeader, InvalidJSONError
from requests.models import PreparedRequest
from requests.structures import CaseInsensitiveDict

__all__ = ["CHECKED", "is_untouched", "merge", "prepare"]

MAX_URLS: Final = 1024
MAX_URL_LENGTH: Final = 2048
"""URLs remembered, and how long they may be; beyond the number all are forgotten."""

_models: Any = models
_sessions: Any = sessions
_new: Final = object.__new__

# requests is looked at in namespaces, by functions in C: this is asked for each request.
_in_sessions: Final = itemgetter(
    "Request", "PreparedRequest", "RequestsCookieJar", "CaseInsensitiveDict", "cookiejar_from_dict", "merge_cookies",
    "merge_setting", "merge_hooks", "get_netrc_auth", "get_environ_proxies",
)  # fmt: skip
_in_models: Final = itemgetter(
    "CaseInsensitiveDict", "HTTPBasicAuth", "check_header_validity", "complexjson", "default_hooks",
    "get_auth_from_url", "get_cookie_header", "parse_url", "requote_uri", "super_len", "to_native_string",
    "unicode_is_ascii", "urlunparse",
)  # fmt: skip
_in_prepared: Final = itemgetter(
    "__init__", "prepare", "prepare_method", "prepare_url", "prepare_headers", "prepare_cookies", "prepare_body",
    "prepare_content_length", "prepare_auth", "prepare_hooks", "_get_idna_encoded_host",
)  # fmt: skip
_in_session: Final = attrgetter("prepare_request", "merge_environment_settings")


def _seams() -> tuple[Any, ...]:
    return (
        _in_sessions(_sessions.__dict__),
        _in_models(_models.__dict__),
        _in_prepared(PreparedRequest.__dict__),
        _models.complexjson.dumps,
        standard_json.JSONEncoder,
        standard_json.JSONEncoder.encode,
        _models.Request.__init__,
        _models.RequestEncodingMixin._encode_params,
        cookies.get_cookie_header,
        CaseInsensitiveDict.__setitem__,
        HTTPBasicAuth.__call__,
    )


_ORIGINALS: Final = _seams()
_OWN: Final = _in_session(Session)
_OF_INSTANCES: Final = ("prepare_request", "merge_environment_settings")
_encode: Final = standard_json.JSONEncoder(allow_nan=False).encode


def is_untouched(session: Session) -> bool:
    """Whether nobody has put anything of his own where requests prepares requests: in this session, in its class, or
    in requests itself."""
    own = session.__dict__
    return (
        _in_session(type(session)) == _OWN
        and _OF_INSTANCES[0] not in own
        and _OF_INSTANCES[1] not in own
        and _seams() == _ORIGINALS
    )


_urls: dict[str, tuple[str, bool]] = {}
"""URL → as requests would send it, and whether it holds a user or password. Never one with credentials."""


def _prepare_url(prepared: PreparedRequest, url: str) -> bool:
    """Set the URL; whether it holds credentials."""
    known = _urls.get(url)
    if known is None:
        prepared.prepare_url(url, {})
        made = prepared.url or ""
        urlparse(made)  # requests does so when it looks for cookies; what it cannot read raises here
        known = made, "@" in made
        if not known[1] and len(url) <= MAX_URL_LENGTH:
            if len(_urls) >= MAX_URLS:
                _urls.clear()
            _urls[url] = known
    else:
        prepared.url = known[0]
    return known[1]


class _Checked:
    """A session's headers, merged and checked: valid as long as the session holds the very same pairs."""

    __slots__ = ("ids", "kept", "store")

    def __init__(self, kept: list[Any], store: OrderedDict[str, Any]) -> None:
        # The pairs are kept, so that no other object can come to have one of their ids.
        self.kept = kept
        self.ids = list(map(id, kept))
        self.store = store


CHECKED: Final = "_netkit_headers"


def _prepare_headers(prepared: PreparedRequest, session: Session, headers: Any) -> None:
    store = _plain_headers(session, headers)
    if store is None:
        asked = {} if headers is None else headers
        prepared.prepare_headers(_sessions.merge_setting(asked, session.headers, dict_class=CaseInsensitiveDict))
        return
    made: Any = _new(CaseInsensitiveDict)
    made._store = store
    prepared.headers = made


def _plain_headers(session: Session, headers: Any) -> OrderedDict[str, Any] | None:
    """What a `CaseInsensitiveDict` of the merged headers holds; None for what requests has to merge, or to refuse."""
    own = session.headers
    if type(own) is not CaseInsensitiveDict or not (headers is None or type(headers) is dict):
        return None
    try:
        pairs = own._store.values()
        checked: _Checked | None = session.__dict__.get(CHECKED)
        if checked is None or checked.ids != list(map(id, pairs)):
            checked = session.__dict__[CHECKED] = _check(own)
        store: OrderedDict[str, Any] = checked.store.copy()
        for name, value in headers.items() if headers else ():
            if type(name) is not str or value is None:
                return None
            _models.check_header_validity((name, value))
            store[name.lower()] = (name, value)
    except InvalidHeader:
        return None
    return store


def _check(own: CaseInsensitiveDict[Any]) -> _Checked:
    kept = list(own._store.values())
    alone = PreparedRequest()
    alone.prepare_headers({name: value for name, value in kept if value is not None})
    return _Checked(kept, alone.headers._store)


def _prepare_cookies(prepared: PreparedRequest, session: Session, given: Any) -> None:
    own: Any = session.cookies
    jar = RequestsCookieJar()
    if not given and type(own) is RequestsCookieJar and not own._cookies:  # type: ignore[attr-defined]
        prepared._cookies = jar
        return
    given = given or {}
    if not isinstance(given, CookieJar):
        given = _sessions.cookiejar_from_dict(given)
    prepared.prepare_cookies(_sessions.merge_cookies(_sessions.merge_cookies(jar, own), given))


def _prepare_body(prepared: PreparedRequest, data: Any, files: Any, json: Any) -> None:
    store: Any = prepared.headers._store
    if files or (data and type(data) is not bytes) or (json is not None and _models.complexjson is not standard_json):
        prepared.prepare_body(data or {}, files, json)
    elif data:
        store["content-length"] = ("Content-Length", str(len(data)))
        prepared.body = data
    elif json is not None:
        try:
            body = _encode(json).encode("utf-8")
        except ValueError as error:
            raise InvalidJSONError(error, request=prepared)  # noqa: B904 - as requests does
        store["content-length"] = ("Content-Length", str(len(body)))
        if "content-type" not in store:
            store["content-type"] = ("Content-Type", "application/json")
        prepared.body = body
    elif prepared.method not in ("GET", "HEAD") and "content-length" not in store:
        store["content-length"] = ("Content-Length", "0")


def _prepare_auth(prepared: PreparedRequest, url: str, auth: Any, in_url: bool) -> None:
    if type(auth) is tuple and len(auth) == 2 and (prepared.body is None or type(prepared.body) is bytes):
        HTTPBasicAuth(*auth)(prepared)  # the length of such a body has been said already
    elif auth is not None or in_url:
        prepared.prepare_auth(auth, url)


def _auth(session: Session, url: str, given: Any, trusts_environment: bool, silent: bool) -> Any:
    own: Any = session.auth
    if trusts_environment and not given and not own:
        given = None if silent else _sessions.get_netrc_auth(url)
    return merge(given, own)


def prepare(
    session: Session,
    method: str,
    url: str,
    *,
    params: Any,
    data: Any,
    headers: Any,
    cookies: Any,
    files: Any,
    auth: Any,
    hooks: Any,
    json: Any,
    trusts_environment: bool,
    silent: bool,
) -> PreparedRequest:
    """What `session.prepare_request(requests.Request(…))` returns, for an untouched session and an http(s) URL.

    `silent`: the environment is known to have nothing to say (see `environment`). Raises what requests raises.
    """
    own_hooks = session.hooks
    hooked = bool(hooks) or not (own_hooks is None or own_hooks.get("response") == [])
    asked_hooks = models.Request(hooks=hooks).hooks if hooked else None
    auth = _auth(session, url, auth, trusts_environment, silent)
    prepared = PreparedRequest()
    prepared.method = method.upper()
    if params or session.params:
        prepared.prepare_url(url, _sessions.merge_setting(params or {}, session.params))
        in_url = "@" in (prepared.url or "")
    else:
        in_url = _prepare_url(prepared, url)
    _prepare_headers(prepared, session, headers)
    _prepare_cookies(prepared, session, cookies)
    _prepare_body(prepared, data, files, json)
    _prepare_auth(prepared, url, auth, in_url)
    if hooked:
        prepared.prepare_hooks(_sessions.merge_hooks(asked_hooks, own_hooks))
    return prepared


def merge(asked: Any, own: Any) -> Any:
    """One setting of a request over the session's, as `requests.sessions.merge_setting` does it; that is asked only
    where both are there."""
    return own if asked is None else asked if own is None else _sessions.merge_setting(asked, own)
