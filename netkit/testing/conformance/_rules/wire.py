"""What leaves: byte for byte what the stack would have sent without netkit, apart from headers that are declared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from netkit.testing.conformance._bench import Bench
from netkit.testing.conformance._rule import rule
from netkit.testing.mock_gpu import Answer, Exchange, RequestRecord

__all__ = ["RULES"]

_BOUNDARY = re.compile(rb"boundary=([^;\s]+)")
_HOP_BY_HOP = frozenset({"connection", "host", "keep-alive", "te", "transfer-encoding", "upgrade"})
"""Not on the wire of HTTP/2 (RFC 9113 section 8.2.2); Host becomes :authority."""

_LARGE = 10 * 1024 * 1024


def _ok(exchange: Exchange) -> Answer:
    return Answer.text("ok")


def _without_boundary(record: RequestRecord) -> tuple[tuple[tuple[str, str], ...], bytes | None]:
    """Headers and body with the random boundary of a multipart body replaced."""
    found = _BOUNDARY.search((record.header("content-type") or "").encode())
    if found is None or record.body is None:
        return record.headers, record.body
    boundary = found.group(1)
    headers = tuple((name, value.replace(boundary.decode(), "BOUNDARY")) for name, value in record.headers)
    return headers, record.body.replace(boundary, b"BOUNDARY")


def _wire(record: RequestRecord, *, declared: frozenset[str], across_versions: bool) -> dict[str, Any]:
    headers, body = _without_boundary(record)
    kept = [(name, value) for name, value in headers if name.lower() not in declared]
    if across_versions:
        # The order of different names has no meaning there, and the engine puts what it must add last.
        kept = sorted((name.lower(), value) for name, value in kept if name.lower() not in _HOP_BY_HOP)
    return {
        "request line": f"{record.method} {record.target}",
        "headers": kept,
        "body": body,
        "body hash": record.body_sha256 if body is None or body == record.body else None,
        "body size": record.body_size,
        "complete": record.body_complete,
    }


async def _same_on_the_wire(bench: Bench, method: str, path: str = "", **options: Any) -> None:
    url = bench.route(_ok)
    await bench.both(lambda session: session.request(method, url + path, **options))
    records = bench.seen(url)
    assert len(records) == 2, f"the server saw {len(records)} requests for two calls, one without netkit and one with"
    across = records[0].protocol != records[1].protocol
    plain, ours = (
        _wire(record, declared=bench.subject.request_headers, across_versions=across) for record in records
    )
    for part, expected in plain.items():
        assert ours[part] == expected, f"{part} changed on the wire: {expected!r} became {ours[part]!r}"


@rule()
async def a_get_is_byte_identical(bench: Bench) -> None:
    """Request line, header names with their case and order, and header values are the stack's own."""
    headers = {"X-Mixed-CASE": "a  b", "x-lower": "1", "Accept": "text/*;q=0.5, */*", "Authorization": "Bearer t=="}
    await _same_on_the_wire(bench, "GET", "?b=2&a=1&a=%20x&empty=", headers=headers)


@rule()
async def a_json_body_is_byte_identical(bench: Bench) -> None:
    """A JSON body and its headers are the stack's own."""
    await _same_on_the_wire(bench, "POST", json={"input": ["ä", "b"], "n": 1.5, "flag": True, "none": None})


@rule()
async def a_form_body_is_byte_identical(bench: Bench) -> None:
    """A form body and its headers are the stack's own."""
    await _same_on_the_wire(bench, "POST", form={"a": "1 2", "b": "ü&="})


@rule()
async def a_multipart_body_is_byte_identical(bench: Bench) -> None:
    """A multipart body is the stack's own, apart from its random boundary."""
    from netkit.testing.conformance._session import Upload

    upload = Upload("picture.bin", bytes(range(256)), "application/octet-stream")
    await _same_on_the_wire(bench, "POST", files={"image": upload})


@rule()
async def a_streamed_upload_is_byte_identical(bench: Bench) -> None:
    """A body from an iterator goes out in the stack's own framing, each chunk once."""

    def chunks() -> Iterator[bytes]:
        yield b"one"
        yield b"two" * 1000
        yield b"three"

    await _same_on_the_wire(bench, "PUT", content=chunks)


@rule()
async def a_large_upload_is_byte_identical(bench: Bench) -> None:
    """Ten megabytes arrive whole."""
    await _same_on_the_wire(bench, "POST", content=bytes(_LARGE))


@rule()
async def other_methods_are_byte_identical(bench: Bench) -> None:
    """HEAD, OPTIONS, PATCH, DELETE and a method of one's own are the stack's own, with and without body."""
    for method in ("HEAD", "OPTIONS", "DELETE", "PURGE"):
        await _same_on_the_wire(bench, method)
    await _same_on_the_wire(bench, "PATCH", content=b"\x00\xff")
    await _same_on_the_wire(bench, "POST", content=b"")


@rule()
async def an_attached_session_sends_the_same_bytes(bench: Bench) -> None:
    """`netkit.attach` on the stack's own session changes nothing on the wire, passes the chain once, and
    `netkit.detach` takes it out again."""
    from netkit import attach, detach, stats
    from netkit.config import Config

    url = bench.route(_ok)
    async with bench.native() as session:
        await session.request("GET", url)
        attach(session.native, plugins=bench.plugins, config=Config())
        await session.request("GET", url)
        assert stats(session.native).requests.total == 1, "an attached session counts a call that is not one"
        detach(session.native)
        await session.request("GET", url)
    plain, ours, detached = bench.seen(url)
    across = plain.protocol != ours.protocol
    declared = bench.subject.request_headers
    expected = _wire(plain, declared=declared, across_versions=across)
    assert _wire(ours, declared=declared, across_versions=across) == expected
    assert _wire(detached, declared=frozenset(), across_versions=False) == _wire(
        plain, declared=frozenset(), across_versions=False
    )


RULES = (
    a_get_is_byte_identical,
    a_json_body_is_byte_identical,
    a_form_body_is_byte_identical,
    a_multipart_body_is_byte_identical,
    a_streamed_upload_is_byte_identical,
    a_large_upload_is_byte_identical,
    other_methods_are_byte_identical,
    an_attached_session_sends_the_same_bytes,
)
