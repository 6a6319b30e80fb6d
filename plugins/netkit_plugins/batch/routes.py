"""Which form the calls to a URL have."""

from __future__ import annotations

import fnmatch
import re
from typing import Final
from urllib.parse import urlsplit

from netkit.forms import PRESETS, Form
from netkit_plugins.batch.options import BatchOptions, CustomForm

__all__ = ["FormTable"]

MAX_URLS: Final = 1024


class FormTable:
    """`find(url)` gives the form, or None where the route has none. Safe from any thread."""

    def __init__(self, options: BatchOptions) -> None:
        self._routes = [
            (re.compile(fnmatch.translate(pattern)).match, "://" in pattern, _form(form))
            for pattern, form in options.routes
        ]
        self._found: dict[str, Form | None] = {}

    def find(self, url: str) -> Form | None:
        found = self._found.get(url, self)
        if isinstance(found, FormTable):
            if len(self._found) >= MAX_URLS:
                self._found = {}
            found = self._found[url] = self._look(url)
        return found

    def _look(self, url: str) -> Form | None:
        parts = urlsplit(url)
        path = parts.path.rstrip("/") or "/"
        whole = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
        return next((form for match, is_whole, form in self._routes if match(whole if is_whole else path)), None)


def _form(given: str | CustomForm) -> Form:
    if isinstance(given, str):
        return PRESETS[given]
    return Form(
        name="custom",
        input=tuple(given.input.split(".")),
        output=tuple(given.output.split(".")) if given.output else (),
        index=given.index,
        objects=given.objects,
    )
