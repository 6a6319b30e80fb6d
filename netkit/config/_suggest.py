"""The closest valid name for a wrong one: other spellings, what other libraries call it, then plain likeness."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["closest", "did_you_mean"]

FOREIGN: Final[Mapping[str, tuple[str, ...]]] = {
    # urllib3 Retry, tenacity, stamina, httpx-retries, SDKs
    "max_retries": ("attempts",),
    "max_retry": ("attempts",),
    "retries": ("attempts", "retry"),
    "total_retries": ("attempts",),
    "total": ("attempts",),
    "tries": ("attempts",),
    "max_tries": ("attempts",),
    "max_attempts": ("attempts",),
    "stop_after_attempt": ("attempts",),
    "backoff": ("backoff_initial", "retry"),
    "backoff_factor": ("backoff_initial",),
    "backoff_base": ("backoff_initial",),
    "initial_backoff": ("backoff_initial",),
    "min_backoff": ("backoff_initial",),
    "wait_initial": ("backoff_initial",),
    "wait_min": ("backoff_initial",),
    "max_backoff": ("backoff_max",),
    "max_delay": ("backoff_max",),
    "wait_max": ("backoff_max",),
    "backoff_jitter": ("jitter",),
    "wait_jitter": ("jitter",),
    "status_forcelist": ("statuses",),
    "status_codes": ("statuses", "failure_statuses"),
    "retry_statuses": ("statuses",),
    "retry_on": ("statuses",),
    "respect_retry_after_header": ("respect_retry_after",),
    "retry_after": ("respect_retry_after", "retry_after_max"),
    # urllib3, httpx and aiohttp pools
    "pool_maxsize": ("max_idle", "max_connections"),
    "pool_connections": ("max_connections_total", "max_connections"),
    "maxsize": ("max_connections", "max_items"),
    "limit_per_host": ("max_connections",),
    "limit": ("max_connections_total",),
    "max_keepalive": ("max_idle",),
    "max_keepalive_connections": ("max_idle",),
    "keepalive_expiry": ("idle_timeout",),
    "keepalive_timeout": ("idle_timeout",),
    "keep_alive": ("idle_timeout", "tcp_keepalive"),
    "pool_timeout": ("acquire_timeout",),
    "connection_timeout": ("connect_timeout",),
    "sock_connect": ("connect_timeout",),
    "connect": ("connect_timeout",),
    "ttl_dns_cache": ("max_lifetime",),
    "timeout": ("connect_timeout", "acquire_timeout", "deadline"),
    # HTTP/2, breakers, caches, limits, batches
    "max_concurrent_streams": ("max_streams",),
    "initial_window_size": ("stream_window",),
    "failure_threshold": ("fail_max",),
    "max_failures": ("fail_max",),
    "recovery_timeout": ("reset_timeout",),
    "expire_after": ("ttl",),
    "expires": ("ttl",),
    "rps": ("requests_per_second",),
    "qps": ("requests_per_second",),
    "tpm": ("tokens_per_minute",),
    "max_concurrency": ("concurrency",),
    "batch_size": ("max_items",),
    "max_batch_size": ("max_items",),
    # plugins
    "tenacity": ("retry",),
    "circuit_breaker": ("breaker",),
    "circuitbreaker": ("breaker",),
    "pybreaker": ("breaker",),
    "rate_limit": ("limit",),
    "ratelimit": ("limit",),
    "limiter": ("limit",),
    "timeouts": ("deadline",),
    "connection_pool": ("pool",),
    "connections": ("pool",),
    "h2": ("http2",),
    "load_balancer": ("balance",),
    "routes": ("route",),
    "order": ("layers",),
    "plugins": ("layers",),
}
"""Names that people bring from elsewhere → ours, best first; used where ours is valid at that place."""


def did_you_mean(wrong: str, valid: Iterable[str]) -> str:
    """ "; did you mean 'attempts'?", or "" when nothing is close."""
    valid = list(valid)
    foreign = [name for name in FOREIGN.get(_plain(wrong), ()) if name in valid]
    near = closest(wrong, valid)
    # Likeness beats the table only where it is nearly the same word.
    if near and (not foreign or closest(wrong, valid, cutoff=0.85)):
        foreign = [near]
    return f"; did you mean {' or '.join(repr(name) for name in foreign)}?" if foreign else ""


def closest(wrong: str, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of `valid` that looks most like `wrong`, whatever its case and punctuation, or None."""
    import difflib

    plain = {_plain(name): name for name in valid}
    found = difflib.get_close_matches(_plain(wrong), plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).casefold().replace("-", "_").replace(" ", "_")
