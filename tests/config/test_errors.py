"""C71: what is wrong is told in one line with file, full key path and the closest valid name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from netkit.config import Config
from netkit.errors import ConfigError
from netkit.plugins import Registry

FILE_CASES = [
    # what stands in pyproject.toml, the key path in the message, what the message says besides
    ("[tool.netkit.retry]\nmax_retry = 5", "tool.netkit.retry.max_retry", "did you mean 'attempts'?"),
    ("[tool.netkit.retry]\nmaxRetries = 5", "tool.netkit.retry.maxRetries", "did you mean 'attempts'?"),
    (
        "[tool.netkit.retry]\nbackoff_factor = 1",
        "tool.netkit.retry.backoff_factor",
        "did you mean 'backoff_initial'?",
    ),
    ("[tool.netkit.retry]\nBackoff-Max = 1", "tool.netkit.retry.Backoff-Max", "did you mean 'backoff_max'?"),
    (
        "[tool.netkit.retry]\nstatus_forcelist = [500]",
        "tool.netkit.retry.status_forcelist",
        "did you mean 'statuses'?",
    ),
    ("[tool.netkit.pool]\npool_maxsize = 5", "tool.netkit.pool.pool_maxsize", "'max_idle' or 'max_connections'?"),
    ("[tool.netkit.pool]\nzzz = 5", "tool.netkit.pool.zzz", "options: max_connections, "),
    (
        "[tool.netkit.retry]\nmax_idle = 5",
        "tool.netkit.retry.max_idle",
        "option of 'pool': tool.netkit.pool.max_idle",
    ),
    ("[tool.netkit]\nrety = true", "tool.netkit.rety", "did you mean 'retry'?"),
    ("[tool.netkit.circuitbreaker]\nx = 1", "tool.netkit.circuitbreaker", "known: "),
    ("[tool.netkit]\nlayer = ['retry']", "tool.netkit.layer", "did you mean 'layers'?"),
    ("[[tool.netkit.routes]]\nmatch = '*'", "tool.netkit.routes", "did you mean 'route'?"),
    ("[tool.netkit]\nattempts = 5", "tool.netkit.attempts", "option of 'retry': tool.netkit.retry.attempts"),
    ("[tool.netkit]\nretry = 5", "tool.netkit.retry", "must be true, false or a table, not 5"),
    ("[tool.netkit]\nretry = 'false'", "tool.netkit.retry", "must be true, false or a table, not 'false'"),
    ("[tool.netkit]\nlayers = 'retry'", "tool.netkit.layers", "must be a list of plugin names"),
    (
        "[tool.netkit]\nlayers = ['retry', 'cahce']",
        "tool.netkit.layers",
        "unknown layer 'cahce'; did you mean 'cache'?",
    ),
    ("[tool.netkit]\nlayers = ['retry', 'retry']", "tool.netkit.layers", "'retry' is named twice"),
    ("[tool.netkit]\nlayers = ['retry', 'pool']", "tool.netkit.layers", "'pool' is a transport"),
    ("[tool.netkit]\nlayers = ['retry']\ncache = true", "tool.netkit.layers", "'cache' is on but not listed"),
    ("[tool.netkit.retry]\nattempts = '5'", "tool.netkit.retry.attempts", "must be an integer, not '5'"),
    ("[tool.netkit.retry]\nattempts = 5.0", "tool.netkit.retry.attempts", "must be an integer, not 5.0"),
    ("[tool.netkit.retry]\nattempts = true", "tool.netkit.retry.attempts", "must be an integer, not True"),
    ("[tool.netkit.retry]\nattempts = 0", "tool.netkit.retry.attempts", "attempts must be at least 1"),
    ("[tool.netkit.retry]\nbackoff_initial = 99", "tool.netkit.retry.backoff_initial", "must not be below"),
    ("[tool.netkit.retry]\nrespect_retry_after = 'false'", "tool.netkit.retry.respect_retry_after", "true or false"),
    ("[tool.netkit.retry]\njitter = 'ful'", "tool.netkit.retry.jitter", '"full" or "equal" or "none", not \'ful\''),
    ("[tool.netkit.retry]\nstatuses = [500, 'x']", "tool.netkit.retry.statuses[1]", "must be an integer, not 'x'"),
    ("[tool.netkit.retry]\nstatuses = 500", "tool.netkit.retry.statuses", "must be a list of integers, not 500"),
    ("[tool.netkit.pool]\nidle_timeout = 'lern'", "tool.netkit.pool.idle_timeout", 'a number or "learn" or "none"'),
    ("[tool.netkit.pool]\ntcp_keepalive = [1, 2]", "tool.netkit.pool.tcp_keepalive", "a list of 3 values"),
    ("[tool.netkit]\nbalance = true", "tool.netkit.balance", "the option 'endpoints' is required"),
    (
        "[[tool.netkit.balance.endpoints]]\nurl = 'https://a'\nwieght = 2",
        "tool.netkit.balance.endpoints[0].wieght",
        "did you mean 'weight'?",
    ),
    ("[[tool.netkit.balance.endpoints]]\nweight = 2", "tool.netkit.balance.endpoints[0].url", "is missing"),
    ("[[tool.netkit.route]]\nmach = '*'", "tool.netkit.route[0].match", "is missing"),
    ("[[tool.netkit.route]]\nmatch = 'host/x'", "tool.netkit.route[0].match", "scheme and host"),
    ("[[tool.netkit.route]]\nmatch = 'https://h/x?y=1'", "tool.netkit.route[0].match", "query"),
    ("[tool.netkit.route]\nmatch = '*'", "tool.netkit.route", "[[tool.netkit.route]]"),
    (
        "[[tool.netkit.route]]\nmatch = '*'\n[[tool.netkit.route]]\nmatch = '*'\nretry = {atempts = 1}",
        "tool.netkit.route[1].retry.atempts",
        "did you mean 'attempts'?",
    ),
    ("[[tool.netkit.route]]\nmatch = '*'\nretri = false", "tool.netkit.route[0].retri", "did you mean 'retry'?"),
    (
        "[[tool.netkit.route]]\nmatch = '*'\nretry = {attempts = 0}",
        "tool.netkit.route[0].retry.attempts",
        "at least 1",
    ),
    ("[tool.netkit]\nnetkit = 3", "tool.netkit.netkit", "unknown key"),
]


@pytest.mark.parametrize(("text", "path", "says"), FILE_CASES)
def test_a_wrong_file_is_one_line(text: str, path: str, says: str, place: Path, known: Registry) -> None:
    (place / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Config.load().check(known)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{place / 'pyproject.toml'}: {path}: ")
    assert says in message


def test_the_same_in_netkit_toml_has_no_prefix(place: Path, known: Registry) -> None:
    (place / "netkit.toml").write_text("[retry]\nmax_retry = 5")
    with pytest.raises(ConfigError, match=r"netkit\.toml: retry\.max_retry: .*did you mean 'attempts'"):
        Config.load().check(known)


ENVIRONMENT_CASES = [
    (
        {"NETKIT_RETRY__ATTEMPTS": "five"},
        "environment variable NETKIT_RETRY__ATTEMPTS: must be an integer, not 'five'",
    ),
    ({"NETKIT_RETRY__MAX_RETRY": "5"}, "environment variable NETKIT_RETRY__MAX_RETRY: "),
    ({"NETKIT_RETRY__MAX_RETRY": "5"}, "did you mean 'attempts'?"),
    ({"NETKIT_RETRY__ATTEMPTS": "0"}, "environment variable NETKIT_RETRY__ATTEMPTS: attempts must be at least 1"),
    (
        {"NETKIT_RETTRY__ATTEMPTS": "5"},
        "environment variable NETKIT_RETTRY__ATTEMPTS: unknown plugin 'rettry'; did you",
    ),
    ({"NETKIT_RETRY_ATTEMPTS": "5"}, "did you mean NETKIT_RETRY__ATTEMPTS?"),
    (
        {"NETKIT_DISABLE": "retry, rety"},
        "environment variable NETKIT_DISABLE: unknown plugin 'rety'; did you mean 'retry'?",
    ),
    ({"NETKIT_DISABEL": "retry"}, "did you mean NETKIT_DISABLE?"),
    ({"NETKIT_RETRY": "5"}, "environment variable NETKIT_RETRY: must be true or false"),
    ({"NETKIT_LAYERS": "retry,cahce"}, "environment variable NETKIT_LAYERS: unknown layer 'cahce'"),
    ({"NETKIT_BALANCE__ENDPOINTS": "[{"}, "environment variable NETKIT_BALANCE__ENDPOINTS: is not valid JSON"),
]


@pytest.mark.parametrize(("environment", "says"), ENVIRONMENT_CASES)
def test_a_wrong_variable(
    environment: dict[str, str], says: str, known: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError) as caught:
        Config.load().check(known)
    assert says in str(caught.value)


ARGUMENT_CASES: list[tuple[Any, str]] = [
    ({"rety": True}, "arguments: rety: unknown plugin 'rety'; did you mean 'retry'?"),
    ({"retry": {"max_retry": 1}}, "arguments: retry.max_retry: "),
    ({"retry": None}, "arguments: retry: must be true, false or a table, not None"),
    ({"retry": {"attempts": "5"}}, "arguments: retry.attempts: must be an integer, not '5'"),
    ({"retry": {"attempts": 0}}, "arguments: retry.attempts: attempts must be at least 1"),
    ({"layers": ["retry"]}, "arguments: layers: unknown plugin"),
]


@pytest.mark.parametrize(("plugins", "says"), ARGUMENT_CASES)
def test_a_wrong_argument(plugins: Any, says: str, known: Registry) -> None:
    with pytest.raises(ConfigError) as caught:
        Config().with_plugins(plugins, "arguments").check(known)
    assert str(caught.value).startswith(says)


def test_overrides_are_checked_without_the_configuration_below(known: Registry) -> None:
    change = Config().with_plugins({"balance": True, "retry": {"backoff_initial": 99}}, "overrides")
    change.check(known, complete=False)  # endpoints and backoff_max may stand in the session's own configuration
    with pytest.raises(ConfigError, match=r"overrides: retry\.max_retry"):
        Config().with_plugins({"retry": {"max_retry": 1}}, "overrides").check(known, complete=False)


def test_a_wrong_value_is_told_although_it_is_overridden(known: Registry) -> None:
    config = Config.from_mapping({"retry": {"attempts": "5"}}, "f").with_plugins(
        {"retry": {"attempts": 5}}, "arguments"
    )
    with pytest.raises(ConfigError, match=r"f: retry\.attempts"):
        config.check(known)


def test_secrets_are_in_no_message_and_no_repr(known: Registry) -> None:
    wrong: list[dict[str, Any]] = [
        {"balance": {"endpoints": [{"url": "https://a", "auth": ["s3cret"]}]}},
        {"balance": {"endpoints": [{"url": "https://a", "headers": {"Authorization": ["s3cret"]}}]}},
        {"cache": {"ttl": "redis://user:s3cret@host/0"}},
        {"cache": {"ttl": "redis://:s3c/ret@host/0".replace("s3c/ret", "s3cret/x")}},
        {"cache": {"token": "s3cret"}},
        {"cache": {"password": "s3cret"}},
    ]
    for settings in wrong:
        config = Config.from_mapping(settings)
        assert "s3cret" not in repr(config)
        with pytest.raises(ConfigError) as caught:
            config.check(known)
        assert "s3cret" not in str(caught.value)


def test_a_variable_may_hold_a_secret_under_any_name(known: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETKIT_CACHE__STORAGE", "redis://:s3cret@host")
    monkeypatch.setenv("NETKIT_BALANCE__ENDPOINTS", '[{"url": "https://a", "auth": "s3cret"}]')
    config = Config.load()
    assert "s3cret" not in repr(config)
    assert "s3cret" not in repr(config.explain(known))
