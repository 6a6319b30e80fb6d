"""The image layer: what holds no picture passes at once; the rest is searched, worked on off the loop, and sent.

Rule of this file: nothing is sent before every picture of a request has been read to its end.
"""

from __future__ import annotations

import threading
from typing import Final

import msgspec

from netkit import Body, Context, Headers, Request, Response, Send, fork
from netkit.errors import ImageError
from netkit_plugins.image.bodies import TooLong, find, kind_of, read_body
from netkit_plugins.image.gate import gate_of
from netkit_plugins.image.opening import Header, inspect
from netkit_plugins.image.options import ImageOptions
from netkit_plugins.image.places import Places
from netkit_plugins.image.process import memory_needed, process
from netkit_plugins.image.result import ProcessedImage
from netkit_plugins.image.spots import Edit, RawSpot, Spot, spliced
from netkit_plugins.image.upload import Shelf

__all__ = ["ImageLayer", "ImageStats"]

SEARCHED_IN_PLACE: Final = 32 * 1024
"""Bytes of a body that are searched in the caller's loop: less work than handing it to a thread."""

_DIGESTS: Final = ("Content-MD5", "Digest", "Content-Digest", "Repr-Digest")
"""Headers that speak of the body's bytes; wrong once these have changed."""


_EARLY_HEADERS: Final = (b"\xff\xd8\xff", b"\x89PNG")
"""JPEG and PNG say everything before their pixels; other formats want all of the file to say how large they are."""


class ImageStats(msgspec.Struct, frozen=True):
    """Pictures so far, of these `unchanged` (sent as they came) and `failed`; their bytes before and after; how many
    were `stored` by `upload`. Now: `in_use` are worked on, `waiting` for their turn (in all sessions that share the
    same limits), in `memory` bytes, and `pending` uploads."""

    pictures: int = 0
    unchanged: int = 0
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    stored: int = 0
    in_use: int = 0
    waiting: int = 0
    memory: int = 0
    pending: int = 0


class ImageLayer:
    """One per session and set of options."""

    def __init__(self, options: ImageOptions, context: Context) -> None:
        self._options = options
        self._runtime = context.runtime
        self._places = Places(options.presets, options.paths)
        self._gate = gate_of(options.worker_count(beside_a_loop=context.runtime.name != "threads"), options.memory)
        self._shelf = Shelf(options) if options.upload_target is not None else None
        self._lock = threading.Lock()
        self._pictures = self._unchanged = self._failed = self._bytes_in = self._bytes_out = 0
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """Another thread of the parent may have held it."""
        self._lock = threading.Lock()

    async def __call__(self, request: Request, send: Send) -> Response:
        body = request.body
        if body.size != 0:
            kind = kind_of(request.headers, sniff=self._options.sniff)
            # A stream that says nothing about itself is left alone, unless `sniff` says that it may be a picture.
            if kind is not None and (body.content is not None or kind != "any" or self._options.sniff):
                request = await self._prepared(request, kind)
        return await send(request)

    async def _prepared(self, request: Request, kind: str) -> Request:
        """The request with its pictures made fit."""
        options, body = self._options, request.body
        try:
            content = await read_body(body, options.max_body, blocking=self._runtime.name == "threads")
        except TooLong as error:
            self._count_failure()
            if options.on_error == "raise":
                raise ImageError(str(error)) from None
            return request if error.body is body else request.replace(body=error.body)
        spots = await self._found(content, kind, request.headers)
        edits = [edit for spot in spots if (edit := await self._edit(spot)) is not None]
        if not edits:
            if body.content is None and not body.replayable:
                # It has been read: the same bytes once more, framed as they would have been.
                return request.replace(body=Body.reopenable(lambda: [content], body.size))
            return request
        headers = request.headers
        for name in _DIGESTS:
            if name in headers:
                headers = headers.remove(name)
        if isinstance(spots[0], RawSpot) and "content-type" in headers:
            headers = headers.set("Content-Type", spots[0].mime)
        return request.replace(body=Body.of(spliced(content, edits)), headers=headers)

    async def _found(self, content: bytes, kind: str, headers: Headers) -> list[Spot]:
        def search() -> list[Spot]:
            return find(content, kind, headers, self._places, sniff=self._options.sniff)

        return search() if len(content) <= SEARCHED_IN_PLACE else await self._runtime.offload(search)

    async def _edit(self, spot: Spot) -> Edit | None:
        """What to put in the place of one picture, None where it stays."""
        passes = self._options.on_error == "pass"
        try:
            picture, edit = await self._worked_on(spot)
        except ImageError as error:
            self._count_failure()
            if passes:
                return None
            raise ImageError(f"{spot.where}: {error}") from error.__cause__
        self._count(picture)
        if self._shelf is None or not spot.takes_url:
            return edit
        try:
            return spot.edit_url(await self._shelf.url_of(picture, self._runtime))
        except ImageError as error:
            self._count_failure()
            if passes:
                return edit
            raise ImageError(f"{spot.where}: {error}") from error.__cause__

    async def _worked_on(self, spot: Spot) -> tuple[ProcessedImage, Edit | None]:
        """First its header, for what it says of the memory that is needed; then all of it, when there is room."""
        run, options = self._gate.run, self._options

        def needed() -> int:
            return memory_needed(_header(spot, options.max_pixels), options)

        def work() -> tuple[ProcessedImage, Edit | None]:
            picture = process(spot.read(), options)
            return picture, spot.edit(picture) if picture.changed else None

        memory = await run(self._runtime, spot.length, needed)
        return await run(self._runtime, spot.length + memory, work)

    def _count(self, picture: ProcessedImage) -> None:
        with self._lock:
            self._pictures += 1
            self._unchanged += not picture.changed
            self._bytes_in += picture.source_bytes
            self._bytes_out += len(picture.bytes)

    def _count_failure(self) -> None:
        with self._lock:
            self._failed += 1

    def stats(self) -> ImageStats:
        return ImageStats(
            pictures=self._pictures,
            unchanged=self._unchanged,
            failed=self._failed,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            stored=self._shelf.stored if self._shelf else 0,
            in_use=self._gate.in_use,
            waiting=self._gate.waiting,
            memory=self._gate.memory_in_use,
            pending=self._shelf.storing if self._shelf else 0,
        )

    def __repr__(self) -> str:
        return f"<ImageLayer {self.stats()}>"


def _header(spot: Spot, max_pixels: int) -> Header:
    try:
        head = spot.head()
        if head.startswith(_EARLY_HEADERS):
            return inspect(head, max_pixels)
    except ImageError:
        # Not enough of it, or what is wrong with it shows in all of it too.
        pass
    return inspect(spot.read(), max_pixels)
