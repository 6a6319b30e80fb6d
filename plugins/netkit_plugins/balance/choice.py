"""Which replica gets a call: pure functions of what is known.

Rules of this file:

- Replicas that are out, or that failed this very call, are left aside as long as any other is there.
- With all of them out, all are used: an outage must not be made worse by the client.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Final

from netkit_plugins.balance.replica import Replica

__all__ = ["PICKS", "Pick", "by_affinity", "candidates", "least_pending", "p2c_ewma", "round_robin"]

Pick = Callable[[Sequence[Replica], float, Random], Replica]


def candidates(replicas: Sequence[Replica], now: float, avoid: Collection[str]) -> Sequence[Replica]:
    """Those to choose from: in and not avoided; else in; else not avoided; else all."""
    here = [replica for replica in replicas if not replica.is_out(now)]
    return (
        [replica for replica in here if replica.key not in avoid]
        or here
        or [replica for replica in replicas if replica.key not in avoid]
        or replicas
    )


def p2c_ewma(among: Sequence[Replica], now: float, random: Random) -> Replica:
    """One of two at random (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing"), the better one
    more often: at twice the load a replica gets a fifth of the pair's calls, at ten times a hundredth. What is never
    called is never measured again, and would stay as bad as it once was."""
    if len(among) == 1:
        return among[0]
    first, second = random.sample(among, 2)
    mine, other = first.load(now) ** 2, second.load(now) ** 2
    if mine + other <= 0.0:
        return first
    return first if random.random() * (mine + other) < other else second


def least_pending(among: Sequence[Replica], now: float, random: Random) -> Replica:
    """The one with the fewest calls under way, by weight; one of them at random where several have as few."""
    fewest = min((replica.pending + 1) / replica.weight for replica in among)
    return random.choice([replica for replica in among if (replica.pending + 1) / replica.weight <= fewest])


def round_robin(among: Sequence[Replica], now: float, random: Random) -> Replica:
    """The one that is furthest behind its share of the calls."""
    return min(among, key=lambda replica: (replica.calls + 1) / replica.weight)


def by_affinity(among: Sequence[Replica], key: str) -> Replica:
    """The same one for the same key (rendezvous hashing, by weight): when one goes, only its keys move."""

    def score(replica: Replica) -> float:
        digest = hashlib.blake2b(f"{replica.key}\n{key}".encode(), digest_size=8).digest()
        share = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
        return -replica.weight / math.log(share)

    return max(among, key=score)


PICKS: Final[dict[str, Pick]] = {
    "p2c-ewma": p2c_ewma,
    "least-pending": least_pending,
    "round-robin": round_robin,
    "affinity": p2c_ewma,
}
"""Policy → its choice. "affinity" is this for calls without a key."""
