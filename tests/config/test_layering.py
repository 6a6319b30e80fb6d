"""Which setting wins, what is on, and in which order it stands."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from netkit.config import Config
from netkit.errors import ConfigError, PluginError
from netkit.plugins import DEFAULT_LAYERS, TRANSPORTS, Registry

from .conftest import Endpoint


def names(config: Config, known: Registry, **how: Any) -> list[str]:
    return [step.name for step in config.plan(known, **how).steps]


def options(config: Config, known: Registry, name: str, **how: Any) -> Any:
    return next(step.options for step in config.plan(known, **how).steps if step.name == name)


def test_nothing_said_means_the_implicit_options(known: Registry) -> None:
    assert names(Config(), known) == ["retry", "pool"]
    assert options(Config(), known, "retry") is known.get("retry").implicit


@pytest.mark.parametrize("said", [True, {}], ids=["true", "table"])
def test_mentioned_means_the_defaults_of_the_dataclass(said: Any, known: Registry) -> None:
    assert options(Config.from_mapping({"retry": said}), known, "retry").attempts == 3
    assert options(Config().with_plugins({"retry": said}, "arguments"), known, "retry").attempts == 3
    assert options(Config(), known, "retry", overrides={"retry": said}).attempts == 3


def test_false_switches_off_and_imports_nothing() -> None:
    known = Registry(builtin={"retry": "netkit_test_not_there"}, use_entry_points=False)
    config = Config().with_plugins({"retry": False, "cache": False}, "arguments")
    config.check(known)  # "cache" is a name of netkit's own, whether or not this version has it
    assert names(config, known) == []
    with pytest.raises(PluginError, match="netkit_test_not_there"):
        Config().check(known)


def test_an_unused_plugin_is_never_imported() -> None:
    known = Registry(builtin={"cache": "netkit_test_not_there"}, use_entry_points=False)
    Config().check(known)
    assert names(Config(), known) == []
    assert [row.value for row in Config().explain(known) if row.table == "cache"] == [False]


def test_every_level_wins_over_those_below(known: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"retry": {"attempts": 11}, "route": [{"match": "*", "retry": {"attempts": n}} for n in (12, 13)]}
    monkeypatch.setenv("NETKIT_RETRY__ATTEMPTS", "14")
    environment = Config.load()
    files = Config.from_mapping(table)
    both = Config(files._document, environment._variables)
    arguments = both.with_plugins({"retry": {"attempts": 15}}, "arguments")

    def attempts(config: Config, **how: Any) -> int:
        config.check(known)
        return int(options(config, known, "retry", **how).attempts)

    assert attempts(files) == 11
    assert attempts(files, routes=(0,)) == 12
    assert attempts(files, routes=(0, 1)) == 13
    assert attempts(both, routes=(0, 1)) == 14
    assert attempts(arguments, routes=(0, 1)) == 15
    assert attempts(arguments, routes=(0, 1), overrides={"retry": {"attempts": 16}}) == 16


def test_keys_add_up_and_true_keeps_them(known: Registry) -> None:
    config = Config.from_mapping({"retry": {"attempts": 5, "jitter": "none"}})
    config = config.with_plugins({"retry": {"attempts": 6}}, "arguments").with_plugins({"retry": True}, "arguments")
    retry = options(config, known, "retry")
    assert (retry.attempts, retry.jitter) == (6, "none")
    off = config.with_plugins({"retry": False}, "arguments")
    assert "retry" not in names(off, known)
    assert options(off, known, "retry", overrides={"retry": True}).attempts == 6


def test_disable_goes_before_options_of_the_environment(known: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETKIT_DISABLE", "cache, retry ,batch")
    monkeypatch.setenv("NETKIT_RETRY__ATTEMPTS", "5")
    monkeypatch.setenv("NETKIT_CACHE", "true")
    config = Config.load()
    config.check(known)
    assert names(config, known) == ["pool"]
    assert names(config.with_plugins({"retry": True}, "arguments"), known) == ["retry", "pool"]


ENVIRONMENT = [
    ("NETKIT_RETRY__ATTEMPTS", "5", "retry", "attempts", 5),
    ("NETKIT_RETRY__BACKOFF_INITIAL", "0.25", "retry", "backoff_initial", 0.25),
    ("NETKIT_RETRY__BACKOFF_INITIAL", "1", "retry", "backoff_initial", 1.0),
    ("NETKIT_RETRY__RESPECT_RETRY_AFTER", "False", "retry", "respect_retry_after", False),
    ("NETKIT_RETRY__RESPECT_RETRY_AFTER", "0", "retry", "respect_retry_after", False),
    ("NETKIT_RETRY__STATUSES", "500, 502", "retry", "statuses", frozenset({500, 502})),
    ("NETKIT_RETRY__STATUSES", "[500]", "retry", "statuses", frozenset({500})),
    ("NETKIT_RETRY__PURE", "*/a,*/b", "retry", "pure", ("*/a", "*/b")),
    ("NETKIT_RETRY__JITTER", "none", "retry", "jitter", "none"),
    ("NETKIT_POOL__MAX_CONNECTIONS_TOTAL", "none", "pool", "max_connections_total", None),
    ("NETKIT_POOL__MAX_CONNECTIONS_TOTAL", "7", "pool", "max_connections_total", 7),
    ("NETKIT_POOL__IDLE_TIMEOUT", "learn", "pool", "idle_timeout", "learn"),
    ("NETKIT_POOL__IDLE_TIMEOUT", "7.5", "pool", "idle_timeout", 7.5),
    ("NETKIT_POOL__IDLE_TIMEOUT", "None", "pool", "idle_timeout", None),
    ("NETKIT_POOL__TCP_KEEPALIVE", "1,2,3", "pool", "tcp_keepalive", (1, 2, 3)),
    ("NETKIT_CACHE__ENABLED", "false", "cache", "enabled", False),
    ("NETKIT_CACHE__ENABLED", "auto", "cache", "enabled", "auto"),
    ("NETKIT_CACHE__ENABLED", "1", "cache", "enabled", True),
    ("NETKIT_CACHE__PER", "1", "cache", "per", 1),
    ("NETKIT_CACHE__PER", "true", "cache", "per", True),
    ("NETKIT_CACHE__NOTE", "none", "cache", "note", None),
    ("NETKIT_CACHE__NOTE", "5", "cache", "note", "5"),
    ("NETKIT_CACHE__TABLE", '{"a": 1}', "cache", "table", (("a", 1),)),
    ("NETKIT_THIRD_PARTY__TTL", "5", "third-party", "ttl", 5.0),
    (
        "NETKIT_BALANCE__ENDPOINTS",
        '[{"url": "https://a", "headers": {"X": "y"}}]',
        "balance",
        "endpoints",
        (Endpoint("https://a", headers=(("X", "y"),)),),
    ),
]


@pytest.mark.parametrize(("variable", "text", "plugin", "key", "value"), ENVIRONMENT)
def test_variables_are_read_by_the_declared_type(
    variable: str, text: str, plugin: str, key: str, value: Any, known: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    config = Config.load()
    config.check(known)
    got = getattr(options(config, known, plugin), key)
    assert (got, type(got)) == (value, type(value))
    hash(options(config, known, plugin))
    row = next(row for row in config.explain(known) if (row.table, row.key) == (plugin, key))
    assert row.source == f"environment {variable}"


TABLES = [
    ({"pool": {"idle_timeout": 5}}, "pool", "idle_timeout", 5.0),
    ({"pool": {"idle_timeout": "learn"}}, "pool", "idle_timeout", "learn"),
    ({"pool": {"idle_timeout": "none"}}, "pool", "idle_timeout", None),
    ({"pool": {"idle_timeout": None}}, "pool", "idle_timeout", None),
    ({"pool": {"tcp_keepalive": [1, 2, 3]}}, "pool", "tcp_keepalive", (1, 2, 3)),
    ({"retry": {"statuses": [500, 500]}}, "retry", "statuses", frozenset({500})),
    ({"retry": {"statuses": {500}}}, "retry", "statuses", frozenset({500})),
    ({"retry": {"jitter": "none"}}, "retry", "jitter", "none"),
    ({"cache": {"note": "5"}}, "cache", "note", "5"),
    ({"cache": {"table": {"a": 1}}}, "cache", "table", (("a", 1),)),
    ({"cache": {"per": True}}, "cache", "per", True),
    (
        {"balance": {"endpoints": [{"url": "https://a", "weight": 2}, Endpoint("https://b")]}},
        "balance",
        "endpoints",
        (Endpoint("https://a", 2.0), Endpoint("https://b")),
    ),
]


@pytest.mark.parametrize(("table", "plugin", "key", "value"), TABLES)
def test_tables_become_hashable_options(table: Any, plugin: str, key: str, value: Any, known: Registry) -> None:
    for config in (Config.from_mapping(table), Config().with_plugins(table, "arguments")):
        config.check(known)
        got = getattr(options(config, known, plugin), key)
        assert (got, type(got)) == (value, type(value))
        hash(options(config, known, plugin))


def test_foreign_variables_are_left_alone(known: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NETKIT_COMPAT_STACK", "NETKIT_HOME", "NETKIT_", "XNETKIT_RETRY__ATTEMPTS"):
        monkeypatch.setenv(variable, "x")
    monkeypatch.setenv("NETKIT_RETRY__ATTEMPTS", " ")
    config = Config.load()
    config.check(known)
    assert options(config, known, "retry").attempts == 2


def test_order(known: Registry) -> None:
    on = {"second": True, "third-party": True, "wire": True, "balance": {"endpoints": []}, "cache": True}
    config = Config.from_mapping(on)
    config.check(known)
    assert names(config, known) == ["second", "third-party", "cache", "retry", "balance", "wire", "pool"]
    own = ["retry", "batch", "third-party", "balance", "cache", "second"]
    ordered = Config.from_mapping({**on, "layers": own})
    ordered.check(known)
    assert names(ordered, known) == ["retry", "third-party", "balance", "cache", "second", "wire", "pool"]


def test_order_from_the_environment(known: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETKIT_LAYERS", "cache,retry")
    monkeypatch.setenv("NETKIT_CACHE", "on")
    config = Config.load()
    config.check(known)
    assert names(config, known) == ["cache", "retry", "pool"]
    with pytest.raises(ConfigError, match="environment variable NETKIT_LAYERS: 'second' is on but not listed"):
        config.with_plugins({"second": True}, "arguments").check(known)


def test_a_configuration_never_changes_and_travels(known: Registry) -> None:
    table: dict[str, Any] = {"retry": {"statuses": [500]}, "route": [{"match": "https://h/*", "cache": True}]}
    config = Config.from_mapping(table).with_plugins({"pool": {"max_idle": 3}}, "arguments")
    twin = pickle.loads(pickle.dumps(config))
    table["retry"]["statuses"].append(1)
    table["retry"]["attempts"] = "wrong"
    for other in (twin, copy.deepcopy(config), copy.copy(config)):
        assert other == config
        assert hash(other) == hash(config)
        assert other.plan(known) == config.plan(known)
        assert other.matching_routes("https://h/x") == (0,)
    assert options(config, known, "retry").statuses == frozenset({500})
    assert config != config.with_plugins({"pool": False}, "arguments")
    with pytest.raises(AttributeError):
        config.path = None  # type: ignore[misc]
    assert config.with_plugins({}, "arguments") is config
    assert "max_idle" in repr(config)


def test_explain_tells_every_origin(known: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETKIT_RETRY__ATTEMPTS", "5")
    monkeypatch.setenv("NETKIT_DISABLE", "second")
    files = Config.from_mapping(
        {"retry": {"jitter": "none"}, "route": [{"match": "https://h/*", "cache": {"ttl": 9}}]}, "f"
    )
    config = Config(files._document, Config.load()._variables).with_plugins({"retry": {"pure": []}}, "arguments")
    rows = {(row.table, row.key): (row.value, row.source) for row in config.explain(known)}
    assert rows["retry", "on"] == (True, "arguments")
    assert rows["retry", "attempts"] == (5, "environment NETKIT_RETRY__ATTEMPTS")
    assert rows["retry", "jitter"] == ("none", "f")
    assert rows["retry", "pure"] == ([], "arguments")
    assert rows["retry", "backoff_max"] == (8.0, "default")
    assert rows["pool", "on"] == (True, "implicit default")
    assert rows["pool", "max_connections"] == (100, "implicit default")
    assert rows["second", "on"] == (False, "environment NETKIT_DISABLE")
    assert rows["cache", "on"] == (False, "default")
    assert rows["route[0]", "match"] == ("https://h/*", "f")
    assert rows["route[0].cache", "ttl"] == (9.0, "f")
    routed = {(row.table, row.key): (row.value, row.source) for row in config.explain(known, url="https://h/x?y")}
    assert routed["cache", "ttl"] == (9.0, "f")
    assert routed["route[0]", "match"] == ("https://h/*", "f (applies)")


def test_explain_shows_no_secret(known: Registry) -> None:
    table = {
        "balance": {"endpoints": [{"url": "https://u:s3cret@a/", "headers": {"X-Key": "s3cret"}, "auth": "s3cret"}]},
        "cache": {"storage": "rediss://:s3cret@host/1?password=s3cret"},
        "route": [{"match": "*", "cache": {"storage": "redis://u:s3cret@host"}}],
    }
    config = Config.from_mapping(table)
    told = repr(config.explain(known)) + repr(config)
    assert "s3cret" not in told
    assert "rediss://***@host/1" in told


@pytest.mark.parametrize("off", [{"route": [{"match": "https://h/chat", "retry": False}]}, {"retry": False}])
def test_an_option_in_the_environment_does_not_undo_an_off(known: Registry, off: dict[str, Any]) -> None:
    """A generation is billed twice when it is sent twice: `retry = false` for its route has to hold."""
    said = Config.from_mapping({"retry": {"attempts": 4}, **off} if "route" in off else off)
    routes = (0,) if "route" in off else ()
    tuned = Config(said._document, (("NETKIT_RETRY__ATTEMPTS", "2"),))
    assert "retry" not in names(said, known, routes=routes)
    assert "retry" not in names(tuned, known, routes=routes)
    if routes:
        assert options(tuned, known, "retry").attempts == 2
    switched = Config(said._document, (("NETKIT_RETRY", "true"),))
    assert "retry" in names(switched, known, routes=routes)


def test_explained_in_the_order_of_the_layers() -> None:
    built_in = Registry(use_entry_points=False)

    def shown(config: Config) -> list[str]:
        return [row.table for row in config.explain(built_in) if row.key == "on"]

    assert shown(Config()) == [*DEFAULT_LAYERS, *TRANSPORTS]
    turned = Config.from_mapping({"layers": ["retry", "breaker"], "breaker": True, "pool": False})
    assert shown(turned)[:3] == ["retry", "breaker", "telemetry"]
    assert shown(turned)[-2:] == [*TRANSPORTS]
    on = [row.table for row in turned.explain(built_in) if row.key == "on" and row.value]
    assert on == names(turned, built_in)


def test_explained_where_others_stand(known: Registry) -> None:
    config = Config.from_mapping({"third-party": True, "wire": True})
    rows = [row.table for row in config.explain(known) if row.key == "on"]
    assert [name for name in rows if name in names(config, known)] == names(config, known)
    assert rows[0] == "third-party"
    off = [row.table for row in Config().explain(known) if row.key == "on"]
    assert set(off[-3:]) == {"second", "third-party", "wire"}
