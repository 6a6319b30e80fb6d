"""The options of `[tool.netkit.balance]`."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal
from urllib.parse import urlsplit

__all__ = ["BalanceOptions", "Endpoint"]


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One replica of a service.

    url: scheme, host and port, and what stands before the paths of its calls: "https://gpu-1:8000/v1" serves what was
        asked of "https://service/embeddings" at "/v1/embeddings" where the service's own `url` has no path.
    weight: its share of the calls in relation to the others'.
    headers: sent to it and to no other endpoint, in place of the call's of the same name.
    auth: a bearer token, or "user:password", for its Authorization header.
    """

    url: str
    weight: float = 1.0
    headers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    auth: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url must be http://host… or https://host…")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("url must have no user, query or fragment; credentials go into headers or auth")
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ValueError(f"weight must be above 0, not {self.weight}")


@dataclasses.dataclass(frozen=True)
class BalanceOptions:
    """Over which replicas calls are spread, and how. Times in seconds.

    endpoints: the replicas; a text is an endpoint's url.
    url: calls to this address are spread; None: calls to the address of any endpoint; "*": every call.
    policy: "p2c-ewma" compares two at random by time to first byte times calls under way; "least-pending" takes the
        one with the fewest calls under way, "round-robin" the next by weight, "affinity" the same for the same key.
    affinity_key: what `affinity` looks at: a header's name, or "body.FIELD" for a field of a JSON body ("body.user").
        A call without it is placed by p2c-ewma.
    eject_after: failures in a row after which an endpoint gets no calls for a time; 0 never ejects.
    eject_time, eject_time_max: that time: eject_time times how often it was ejected, at most eject_time_max.
    resolve: every address of an endpoint's name is an endpoint of its own.
    max_connection_age: names are asked for their addresses again after this time, give or take 10 %, and older
        connections take no new calls, so that new replicas get their share; those under way end undisturbed. None:
        `resolve` asks every 30 s, and connections age as `pool.max_lifetime` says.
    """

    endpoints: tuple[Endpoint | str, ...] = ()
    url: str | None = None
    policy: Literal["p2c-ewma", "round-robin", "least-pending", "affinity"] = "p2c-ewma"
    affinity_key: str = "x-session-id"
    eject_after: int = 5
    eject_time: float = 30.0
    eject_time_max: float = 300.0
    resolve: bool = False
    max_connection_age: float | None = None

    def __post_init__(self) -> None:
        made = tuple(Endpoint(each) if isinstance(each, str) else each for each in self.endpoints)
        object.__setattr__(self, "endpoints", made)
        urls = [endpoint.url.rstrip("/") for endpoint in made]
        if len(set(urls)) < len(urls):
            raise ValueError(f"endpoints: {max(urls, key=urls.count)} is there twice; use weight")
        if self.url not in (None, "*") and urlsplit(self.url or "").scheme not in ("http", "https"):
            raise ValueError('url must be http://host…, https://host… or "*"')
        if self.eject_after < 0:
            raise ValueError(f"eject_after must be at least 0, not {self.eject_after}")
        if not 0 < self.eject_time <= self.eject_time_max:
            raise ValueError("eject_time must be above 0 and at most eject_time_max")
        if self.max_connection_age is not None and self.max_connection_age <= 0:
            raise ValueError(f"max_connection_age must be above 0, not {self.max_connection_age}")
        if not self.affinity_key.strip():
            raise ValueError("affinity_key must name a header, or a field as body.FIELD")

    def replicas(self) -> tuple[Endpoint, ...]:
        """`endpoints`, all of one type."""
        return tuple(each for each in self.endpoints if isinstance(each, Endpoint))
