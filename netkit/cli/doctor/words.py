"""Findings in words: one topic and one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from netkit.cli.doctor.batching import Batching
from netkit.cli.doctor.diagnosis import Diagnosis, Http1Facts, Http2Facts
from netkit.cli.doctor.reply import Upload

__all__ = ["findings"]


def findings(found: Diagnosis) -> Iterator[tuple[str, str]]:
    """(topic, what was found) in the order in which a reader wants it."""
    if found.address:
        yield "connect", f"{found.address}, TCP round trip {_ms(found.tcp)}"
    if found.tls_version is not None:
        trusted = "certificate trusted" if found.verified else "certificate NOT verified (--insecure)"
        yield "TLS", f"{found.tls_version}, handshake {_ms(found.tls)}, ALPN {found.alpn or 'none'}, {trusted}"
    if found.http2 is not None:
        yield from _http2(found.http2, "without TLS, by prior knowledge" if found.prior_knowledge else "by ALPN")
    elif found.address:
        yield "HTTP/2", "not offered"
    if found.http1 is not None:
        yield "HTTP/1.1", _http1(found.http1)
    if found.status is not None:
        yield "answer", _answer(found)
    if found.batching is not None:
        yield "batches", _batching(found.batching)
    if found.limits:
        yield "rate limits", ", ".join(f"{name}: {value}" for name, value in found.limits.items())
    if found.retry_after is not None:
        yield "Retry-After", found.retry_after
    if found.upload is not None:
        yield "uploads", _upload(found.upload)
    for name, ended in found.idle.items():
        if ended is None:
            yield "idle", f"{name}: still open after {found.idle_bound:g} s (look longer with --idle SECONDS)"
        else:
            yield "idle", f"{name}: the server hung up after {ended[0]:.1f} s ({ended[1]})"
    for skipped in found.skipped:
        yield "not found out", skipped
    if found.problem is not None:
        yield "PROBLEM", found.problem


def _http2(facts: Http2Facts, how: str) -> Iterator[tuple[str, str]]:
    streams = "any number of" if facts.max_streams is None else facts.max_streams
    yield "HTTP/2", f"{how}; {streams} streams per connection, PING {_ms(facts.ping)}"
    pace = ""
    if facts.ping:
        pace = f": at most {facts.stream_window / facts.ping / 1e6:.0f} MB/s up per stream at this round trip"
    headers = "any" if facts.max_header_list is None else _size(facts.max_header_list)
    yield (
        "windows",
        f"{_size(facts.stream_window)} per stream, {_size(facts.connection_window)} per connection{pace}; "
        f"frames up to {_size(facts.max_frame)}, header lists of {headers}",
    )


def _http1(facts: Http1Facts) -> str:
    if not facts.keep_alive:
        return f"{facts.version}, closes after each answer"
    hints = [
        f"for {facts.timeout:g} s" if facts.timeout else "",
        f"for {facts.max_requests} requests" if facts.max_requests else "",
    ]
    said = " and ".join(filter(None, hints))
    return f"{facts.version}, keeps connections" + (f"; announces {said}" if said else "; announces no time")


def _answer(found: Diagnosis) -> str:
    parts = [f"{found.status} in {_ms(found.answered)}"]
    if found.server:
        parts.append(f"server {found.server}")
    if found.location:
        parts.append(f"redirects to {found.location} (not followed)")
    parts.append(f"names requests in {found.request_id}" if found.request_id else "no x-request-id")
    if found.status in (401, 403):
        parts.append("wants credentials: --header 'Authorization: …'")
    return ", ".join(parts)


def _batching(found: Batching) -> str:
    if found.works is None:
        return f"{found.route}: not found out ({found.why})"
    if not found.works:
        return f"{found.route}: one input at a time ({found.why})"
    limit = ""
    if found.named is not None:
        limit = f"; it names {found.named} as its limit"
    elif found.refused is not None:
        limit = f"; {found.refused} are refused"
    gain = f"; {found.largest} inputs take {_ms(found.seconds[found.largest])}, one takes {_ms(found.seconds[1])}"
    ended = "" if found.refused is not None or not found.why else f" (stopped: {found.why})"
    return f"{found.route}: takes {found.largest} at once{limit}{gain}{ended}"


def _upload(found: Upload) -> str:
    if found.status is None:
        return {
            "stays": "no answer before the whole body is there",
            "resets": "cuts an upload that is too large without an answer",
            "closes": "closes the connection on an upload that is too large",
        }[found.ends]
    then = {"stays": "leaves it open", "resets": "resets the stream", "closes": "closes the connection"}[found.ends]
    return f"answers {found.status} while a body of 1 GiB is on its way, and {then}"


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.1f} ms"


def _size(count: int) -> str:
    if count >= 1 << 20:
        return f"{count / (1 << 20):.4g} MiB"
    return f"{count / 1024:.4g} KiB" if count >= 1024 else f"{count} B"
