"""`python -m tests.compat`: the peers' own test suites with netkit's classes in place, against the originals.

Exit code 0: no test is worse with netkit. 1: some are. 2: a suite could not be run. See docs/compat.md.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.compat.compare import counts, judge, suspects
from tests.compat.environment import CACHE, Prepared, prepare
from tests.compat.libraries import LIBRARIES
from tests.compat.running import Run, read, run
from tests.compat.suites import SUITES, Suite, SuiteError

RERUNS = 2
JUDGEMENTS = ("different", "explained", "unsteady", "flaky")
ALL: dict[str, Suite] = SUITES | LIBRARIES


@dataclass
class Result:
    """What one stack's suite showed."""

    stack: str
    version: str
    originals: Run
    replaced: Run | None = None
    judged: dict[str, str] = field(default_factory=dict)
    """Suspect test → different, flaky, unsteady or explained."""
    seconds: float = 0.0

    def having(self, judgement: str) -> list[str]:
        return [test for test, found in self.judged.items() if found == judgement]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    # Ended from outside, the run still ends the pytest process that it watches.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    classes = "originals" if options.baseline_only else options.classes
    results, broken = [], False
    for stack in options.stack or list(ALL):
        try:
            with _alone(CACHE / stack):
                results.append(_compared(ALL[stack], classes, options.keyword, options.reuse_baseline))
        except SuiteError as problem:
            print(f"{stack}: {problem}", file=sys.stderr)
            broken = True
        else:
            if not options.keep and not results[-1].judged:
                _tidy(CACHE / stack)
    _show(results, classes)
    if options.json:
        options.json.write_text(json.dumps([_plain(result) for result in results], indent=1), encoding="utf-8")
    if broken:
        return 2
    return 1 if any(result.having("different") for result in results) else 0


def _compared(suite: Suite, classes: str, keyword: str | None, reuse: bool) -> Result:
    begun = time.monotonic()
    _say(f"{suite.stack}: preparing")
    prepared = prepare(suite)
    if suite.ours:
        return _checked(suite, prepared, keyword, begun)
    kept = prepared.work / "originals.jsonl"
    if reuse and kept.exists():
        originals = read(kept)
        _say(f"{suite.stack}: {len(originals.outcomes)} outcomes of the originals kept from before")
    else:
        originals = run(suite, prepared, "originals", name="first-originals", keyword=keyword)
        _say(f"{suite.stack}: {len(originals.outcomes)} tests with the originals, {originals.seconds:.0f} s")
        if keyword is None:
            shutil.copy(prepared.work / "first-originals.jsonl", kept)
    if not any(outcome == "passed" for outcome in originals.outcomes.values()):
        raise SuiteError(f"no test passes with the originals; see {prepared.work / 'first-originals.log'}")
    result = Result(suite.stack, prepared.peer_version, originals)
    if classes != "originals":
        result.replaced = run(suite, prepared, classes, name=f"first-{classes}", keyword=keyword)
        _say(f"{suite.stack}: {len(result.replaced.outcomes)} tests with {classes}, {result.replaced.seconds:.0f} s")
        if not result.replaced.replaced:
            raise SuiteError(f"{classes} was nowhere in place when the tests ran")
        _judge(suite, prepared, classes, result, result.replaced)
    result.seconds = time.monotonic() - begun
    return result


def _checked(suite: Suite, prepared: Prepared, keyword: str | None, begun: float) -> Result:
    """A run of tests of ours, which put netkit in place themselves: what does not pass counts as different."""
    outcomes = run(suite, prepared, "originals", name="first-netkit", keyword=keyword)
    bad = [test for test, outcome in outcomes.outcomes.items() if outcome != "passed"]
    judged = dict.fromkeys(bad, "different")
    return Result(suite.stack, "ours", Run(), outcomes, judged, time.monotonic() - begun)


def _judge(suite: Suite, prepared: Prepared, classes: str, result: Result, replaced: Run) -> None:
    """Try every suspect again on both sides: by itself first, then among its neighbours if it passes by itself."""
    tests = suspects(result.originals.outcomes, replaced.outcomes)
    known = [test for test in tests if test.startswith(tuple(suite.explained))]
    result.judged |= dict.fromkeys(known, "explained")
    tests = [test for test in tests if test not in result.judged]
    if tests:
        _say(f"{suite.stack}: {len(tests)} tests differ, trying them again")
        _retry(suite, prepared, classes, result, replaced, tests, tests)
    unsteady = result.having("unsteady")
    if unsteady:
        _say(f"{suite.stack}: {len(unsteady)} pass by themselves, trying their modules")
        modules = {test.partition("::")[0] for test in unsteady}
        neighbours = [test for test in result.originals.outcomes if test.partition("::")[0] in modules]
        _retry(suite, prepared, classes, result, replaced, unsteady, neighbours)


def _retry(
    suite: Suite,
    prepared: Prepared,
    classes: str,
    result: Result,
    replaced: Run,
    tests: Sequence[str],
    among: Sequence[str],
) -> None:
    before = {test: [result.originals.outcomes[test]] for test in tests}
    after = {test: [replaced.outcomes.get(test, "gone")] for test in tests}
    for number in range(RERUNS):
        for side, tries in (("originals", before), (classes, after)):
            again = run(suite, prepared, side, name=f"again-{number}-{side}", only=among)
            for test in tests:
                tries[test].append(again.outcomes.get(test, "gone"))
    for test in tests:
        result.judged[test] = judge(before[test], after[test])


def _show(results: Sequence[Result], classes: str) -> None:
    for result in results:
        for test, outcome in result.originals.outcomes.items():
            if outcome == "error" and "::" not in test:
                print(f"{result.stack}: {test} cannot be imported, so none of its tests is compared")
        for judgement, title in (
            ("different", f"pass with the original, not with {classes}"),
            ("explained", "differ for a reason that docs/compat.md names (not counted)"),
            ("unsteady", f"failed once with {classes}, passed when tried again (not counted)"),
            ("flaky", "do not always pass with the original (not counted)"),
        ):
            tests = result.having(judgement)
            if tests:
                print(f"\n{result.stack}: {len(tests)} {title}")
            for test in tests:
                after = result.replaced.outcomes.get(test, "gone") if result.replaced else ""
                print(f"  {result.originals.outcomes.get(test, '-')} -> {after}  {test}")
                if judgement == "different" and result.replaced:
                    print(f"      {_last_line(result.replaced.details.get(test, ''))}")
    head = ("suite on", "originals p/f/s", f"{classes} p/f/s", *JUDGEMENTS, "seconds")
    rows = [head] + [
        (
            f"{result.stack} {result.version}",
            "/".join(map(str, counts(result.originals.outcomes))) if result.originals.outcomes else "-",
            "/".join(map(str, counts(result.replaced.outcomes))) if result.replaced else "-",
            *(str(len(result.having(judgement))) for judgement in JUDGEMENTS),
            f"{result.seconds:.0f}",
        )
        for result in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _last_line(detail: str) -> str:
    """The line of a failure that says what went wrong: pytest marks it with an E."""
    marked = [line[1:].strip() for line in detail.splitlines() if line.startswith("E ")]
    return (marked or detail.strip().splitlines() or ["no report"])[0][:200]


def _plain(result: Result) -> dict[str, object]:
    replaced = result.replaced or Run()
    return {
        "stack": result.stack,
        "version": result.version,
        "replaced": replaced.replaced,
        "originals": result.originals.outcomes,
        "with": replaced.outcomes,
        "judged": result.judged,
        "details": {test: replaced.details.get(test, "") for test in result.judged},
        "seconds": round(result.seconds, 1),
    }


def _tidy(work: Path) -> None:
    for pattern in ("first-*", "again-*"):
        for path in work.glob(pattern):
            path.unlink()


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Two runs in one checkout take turns: they share environments and result files."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    parser.add_argument("--stack", action="append", choices=list(ALL), help="this suite only (repeatable)")
    parser.add_argument(
        "--classes",
        choices=("netkit", "plain"),
        default="netkit",
        help="plain: trivial subclasses, to prove the harness",
    )
    parser.add_argument("-k", dest="keyword", metavar="EXPRESSION", help="pytest's -k, for both runs")
    parser.add_argument("--keep", action="store_true", help="keep pytest's logs also when nothing differs")
    parser.add_argument("--baseline-only", action="store_true", help="run with the originals and compare nothing")
    parser.add_argument(
        "--reuse-baseline", action="store_true", help="take the originals' outcomes from the last full run, if any"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome and failure there")
    options = parser.parse_args(arguments)
    if options.keyword and options.reuse_baseline:
        parser.error("--reuse-baseline needs the whole suite, so no -k")
    return options


if __name__ == "__main__":
    sys.exit(main())
