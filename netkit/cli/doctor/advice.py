"""Settings that follow from what was found out, as a block of TOML to paste."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from netkit.cli.doctor.batching import Batching
from netkit.cli.doctor.diagnosis import Diagnosis

__all__ = ["block", "settings"]

_SAFETY: Final = 0.8
"""Of the time after which the server hangs up: below it, no request meets the close."""

_ENOUGH_STREAMS: Final = 128
_MOST_CONNECTIONS: Final = 64
_DEFAULT_ITEMS: Final = 32
_DEFAULT_ROUTES: Final = {"*/embeddings": "openai", "*/embed": "tei", "*/gme": "gme"}


def settings(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plugin → its settings for this server."""
    found: dict[str, Any] = {"http2": _http2(diagnosis)}
    pool: dict[str, Any] = {}
    ends = [ended[0] for ended in diagnosis.idle.values() if ended is not None]
    if diagnosis.http1 is not None:
        if diagnosis.http1.timeout:
            ends.append(diagnosis.http1.timeout)
        if diagnosis.http1.max_requests:
            pool["max_requests"] = diagnosis.http1.max_requests
    if ends:
        pool["idle_timeout"] = max(0.1, math.floor(min(ends) * _SAFETY * 10) / 10)
    found["pool"] = pool or True
    if diagnosis.limits or diagnosis.retry_after is not None:
        found |= {"retry": True, "limit": True}
    if diagnosis.batching is not None and diagnosis.batching.works:
        found["batch"] = _batch(diagnosis.batching)
    return found


def _http2(diagnosis: Diagnosis) -> Any:
    facts = diagnosis.http2
    if facts is None:
        return False
    options: dict[str, Any] = {}
    if diagnosis.prior_knowledge:
        options["enabled"] = "prior-knowledge"
    if facts.max_streams and facts.max_streams < _ENOUGH_STREAMS // 16:
        options["max_connections"] = min(_MOST_CONNECTIONS, math.ceil(_ENOUGH_STREAMS / facts.max_streams))
    return options or True


def _batch(batching: Batching) -> Any:
    options: dict[str, Any] = {}
    if batching.refused is not None or batching.largest < _DEFAULT_ITEMS:
        options["max_items"] = min(batching.largest, batching.named or batching.largest)
    pattern = f"*/{batching.route.rstrip('/').rpartition('/')[2]}"
    if pattern not in _DEFAULT_ROUTES:
        options["routes"] = {pattern: batching.form}
    return options or True


def block(diagnosis: Diagnosis) -> str:
    """The block for `pyproject.toml`: a route of this server, so that others keep their settings."""
    lines = ["[[tool.netkit.route]]", f"match = {json.dumps(diagnosis.match)}"]
    lines += [f"{name} = {_toml(value)}" for name, value in settings(diagnosis).items()]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {_toml(inner)}' for key, inner in value.items())} }}"
    return json.dumps(value)


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() and name.isascii() else json.dumps(name)
