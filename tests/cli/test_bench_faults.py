"""`netkit bench faults`, tiny: what it prints is what happened. Who wins is for the benchmark itself to say."""

from __future__ import annotations

import json

import pytest

from netkit.cli import main
from netkit.cli.bench.contenders import CONTENDERS, PLUGINS, plugins_for
from netkit.cli.bench.load import Outcome, Timeline, summarise
from netkit.cli.bench.scenarios import SCENARIOS
from netkit.plugins import registry

TINY = ["--seconds", "0.2", "--rate", "30", "--fault", "flapping"]
SECONDS = 0.3 + 0.2 + 0.5


@pytest.mark.parametrize("stack", ["requests", "httpx", "aiohttp"])
def test_every_contender_of_a_stack_is_measured(stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "faults", "--stack", stack, "--json", *TINY]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["contender"]: row for row in report["rows"]}
    assert list(rows) == [contender.name for contender in CONTENDERS if contender.stack == stack]
    for row in rows.values():
        assert row["calls"] == int(30 * SECONDS)
        assert 0 < row["success"] <= 1
    plain, retried, ours = rows.values()
    # Without retries the servers see each call once at most (not at all where a connect came too late), and each
    # failure is a caller's.
    assert 0 < plain["load"] <= 1.0
    assert plain["success"] < 1
    assert retried["load"] > 1
    assert ours["success"] > plain["success"]
    assert "breaker" in report["plugins"]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "faults", "--stack", "aiohttp", *TINY]) == 0
    out = capsys.readouterr().out
    assert "aiohttp-retry" in out
    assert "netkit.ClientSession" in out
    assert "flapping: a quarter of a second down" in out


@pytest.mark.parametrize("option", ["--stack", "--fault"])
def test_unknown_names(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "faults", option, "curl"]) == 2
    assert "there is no" in capsys.readouterr().err


def test_netkits_settings_are_valid_and_only_of_what_is_there() -> None:
    from netkit.config import Config

    plugins = plugins_for(["http://a", "http://b"])
    assert plugins.keys() == PLUGINS.keys() & set(registry().names())
    Config().with_plugins(plugins, source="bench").plan(registry())


def test_a_summary() -> None:
    outcomes = [Outcome(n / 10, n / 10 + 0.05, n not in (5, 8)) for n in range(10)]
    found = summarise(outcomes, 15, Timeline(0.4, 0.7, 1.0))
    assert found["success"] == 0.8
    assert found["load"] == 1.5
    assert found["recovery"] == pytest.approx(0.15)
    assert found["p99"] == pytest.approx(0.05)


def test_every_fault_says_what_it_is() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS) == 6
    assert all(scenario.summary for scenario in SCENARIOS)
