"""Pictures stored elsewhere, once per content, so that a request carries a URL instead of megabytes.

Rules of this file:

- One content is stored by one caller; the others wait for it, and try themselves when it fails or leaves.
- The request goes to a storage of the user's own choice: nothing of the call's own headers or credentials goes along,
  and no redirect is followed.
- Neither credentials nor query of a storage URL are in an error, or in the URL that is sent.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from netkit import Runtime, fork
from netkit.errors import ImageError
from netkit_plugins.image.encoding import extension
from netkit_plugins.image.options import ImageOptions
from netkit_plugins.image.result import ProcessedImage

__all__ = ["Shelf", "filled", "public_url", "put", "store"]

MAX_KNOWN: Final = 4096
"""URLs remembered; beyond it the one that was stored first is forgotten."""


class Shelf:
    """What one session has stored, and what is being stored just now. Safe from any thread and any loop."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._storing: dict[str, list[Callable[[], None]]] = {}
        self.stored = 0
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """Whoever stores in the parent does not report here."""
        self._lock = threading.Lock()
        self._storing = {}

    @property
    def storing(self) -> int:
        return len(self._storing)

    async def url_of(self, picture: ProcessedImage, runtime: Runtime) -> str:
        """The URL of `picture`, stored now if it is not yet. Raises ImageError when it cannot be."""
        digest = hashlib.sha256(picture.bytes).hexdigest()
        while True:
            event = runtime.event()
            with self._lock:
                url = self._recall(digest, runtime.now())
                if url is not None:
                    return url
                others = self._storing.get(digest)
                if others is None:
                    self._storing[digest] = []
                else:
                    others.append(event.set)
            if others is None:
                return await self._store(digest, picture, runtime)
            await event.wait()

    async def _store(self, digest: str, picture: ProcessedImage, runtime: Runtime) -> str:
        try:
            url = await runtime.offload(store, picture, digest, self._options)
            with self._lock:
                self.stored += 1
                self._known[digest] = url, runtime.now()
                if len(self._known) > MAX_KNOWN:
                    self._known.popitem(last=False)
            return url
        finally:
            with self._lock:
                others = self._storing.pop(digest, [])
            for wake in others:
                wake()

    def _recall(self, digest: str, now: float) -> str | None:
        url, since = self._known.get(digest, (None, 0.0))
        ttl = self._options.upload_ttl
        if url is not None and ttl is not None and now - since >= ttl:
            del self._known[digest]
            return None
        return url


def store(picture: ProcessedImage, digest: str, options: ImageOptions) -> str:
    """Store it, and return the URL that is sent. Blocks. Raises ImageError."""
    target = options.upload_target
    if callable(target):
        try:
            url = target(picture)
        except Exception as error:
            raise ImageError(f"upload failed: {type(error).__name__}") from error
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ImageError(f"upload must return an http(s) URL, but returned a {type(url).__name__}")
        return url
    assert isinstance(target, str)
    ending = extension(picture.mime)
    where = filled(target, digest, ending)
    put(where, picture, options.upload_timeout)
    return public_url(where) if options.upload_url is None else filled(options.upload_url, digest, ending)


def filled(template: str, digest: str, ending: str) -> str:
    """A URL template with its marks replaced; other braces stay."""
    return template.replace("{sha256}", digest).replace("{extension}", ending)


def public_url(url: str) -> str:
    """`url` without credentials, query and fragment: what stays when a signature is taken off."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def put(url: str, picture: ProcessedImage, timeout: float) -> None:
    """PUT the picture. Raises ImageError unless the storage answers 2xx."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    headers = {"Content-Type": picture.mime}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode("ascii")
    request = urllib.request.Request(bare, picture.bytes, headers, method="PUT")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        raise ImageError(f"a picture could not be stored at {parts.scheme}://{host}: status {error.code}") from None
    except (OSError, ValueError) as error:
        name = type(getattr(error, "reason", error)).__name__
        raise ImageError(f"a picture could not be stored at {parts.scheme}://{host}: {name}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object) -> None:
        return None
