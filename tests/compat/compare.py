"""Comparison of two runs: which tests are suspect, and what several tries of each say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

Judgement = Literal["different", "flaky", "unsteady", "explained"]

GOOD = frozenset({"passed", "skipped", "xfailed", "xpassed"})


def suspects(originals: Mapping[str, str], replaced: Mapping[str, str]) -> list[str]:
    """Tests that are worse with the replaced classes: no longer pass, or were fine and now fail or are gone."""
    return [
        test for test, before in originals.items() if before in GOOD and _is_worse(before, replaced.get(test, "gone"))
    ]


def judge(originals: Sequence[str], replaced: Sequence[str]) -> Judgement:
    """What the tries of one suspect say; the first of each is the full run, the rest are reruns.

    "flaky": the originals do not always manage either. "different": it failed again at least once with the replaced
    classes. "unsteady": it failed in the full run and in no rerun.
    """
    if any(_is_worse(originals[0], again) for again in originals[1:]):
        return "flaky"
    return "different" if any(_is_worse(originals[0], again) for again in replaced[1:]) else "unsteady"


def counts(outcomes: Mapping[str, str]) -> tuple[int, int, int]:
    """How many passed, failed, and were skipped; expected failures count as skipped, unexpected passes as passed."""
    seen = Counter(outcomes.values())
    passed, skipped = seen["passed"] + seen["xpassed"], seen["skipped"] + seen["xfailed"]
    return passed, len(outcomes) - passed - skipped, skipped


def _is_worse(before: str, after: str) -> bool:
    if before in ("passed", "xpassed"):
        return after not in ("passed", "xpassed")
    return after not in GOOD
