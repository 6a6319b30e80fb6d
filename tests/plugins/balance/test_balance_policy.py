"""The pure parts: what a replica's load is, which replica is chosen, what servers report, how a call is addressed."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from netkit_plugins.balance.choice import PICKS, by_affinity, candidates
from netkit_plugins.balance.options import BalanceOptions, Endpoint
from netkit_plugins.balance.replica import Replica
from netkit_plugins.balance.reports import utilisation_of
from netkit_plugins.balance.service import Service, Target

from netkit import Body, Headers, Request


def replicas(*weights: float) -> list[Replica]:
    return [Replica(f"http://{index}", weight) for index, weight in enumerate(weights)]


def measured(replica: Replica, seconds: float) -> None:
    """The first answer waited for a connection, too: it takes a second one."""
    replica.first_byte(seconds * 100, 0.0)
    replica.first_byte(seconds, 0.0)


def test_two_slow_answers_count_at_once_and_a_fast_one_by_and_by() -> None:
    replica = Replica("r")
    measured(replica, 0.1)
    replica.first_byte(2.0, 1.0)
    assert replica.seconds(1.0) < 0.11
    replica.first_byte(2.0, 1.0)
    assert replica.seconds(1.0) == 2.0
    replica.first_byte(0.1, 2.0)
    assert 1.5 < replica.seconds(2.0) < 2.0
    assert replica.seconds(60.0) < 0.02


def test_load_counts_what_is_under_way_and_weight() -> None:
    slow, fast = replicas(1, 1)
    measured(slow, 0.4)
    measured(fast, 0.1)
    for _ in range(3):
        fast.begin()
    assert fast.load(0.0) == pytest.approx(slow.load(0.0))
    fast.begin()
    assert fast.load(0.0) > slow.load(0.0)
    heavy = Replica("h", 4.0)
    measured(heavy, 0.4)
    assert heavy.load(0.0) == pytest.approx(0.1)


def test_nobody_waits_behind_a_first_call_that_was_not_answered_yet() -> None:
    new, known = replicas(1, 1)
    measured(known, 5.0)
    assert new.load(0.0) < known.load(0.0)
    new.begin()
    assert new.load(0.0) > known.load(0.0)


def test_a_report_of_load_counts_for_a_time() -> None:
    first, second = replicas(1, 1)
    measured(first, 0.1)
    measured(second, 0.1)
    first.report(0.9, 0.0)
    assert first.load(0.0) == pytest.approx(second.load(0.0) * 10)
    assert first.load(20.0) == pytest.approx(second.load(20.0))


def test_ejections_grow_and_are_forgotten() -> None:
    replica = Replica("r")
    assert [replica.eject(now, 30.0, 100.0) for now in (0.0, 40.0, 110.0, 210.0)] == [30.0, 60.0, 90.0, 100.0]
    assert replica.eject(1000.0, 30.0, 100.0) == 30.0


def test_who_is_left_aside() -> None:
    first, second, third = everyone = replicas(1, 1, 1)
    first.rest(0.0, 10.0)
    assert candidates(everyone, 5.0, ()) == [second, third]
    assert candidates(everyone, 10.0, ()) == everyone
    assert candidates(everyone, 5.0, (second.key,)) == [third]
    assert candidates(everyone, 5.0, (second.key, third.key)) == [second, third]
    for replica in everyone:
        replica.rest(0.0, 10.0)
    assert candidates(everyone, 5.0, ()) == everyone
    assert candidates(everyone, 5.0, (first.key,)) == [second, third]
    assert candidates([first], 5.0, (first.key,)) == [first]


@pytest.mark.parametrize("policy", ["p2c-ewma", "least-pending", "round-robin"])
def test_equal_replicas_get_equal_shares(policy: str) -> None:
    everyone = replicas(1, 1, 1, 1)
    random = Random(1)
    counts: Counter[str] = Counter()
    for number in range(4000):
        replica = PICKS[policy](everyone, number * 0.01, random)
        replica.begin()
        replica.finish()
        replica.first_byte(0.1, number * 0.01)
        counts[replica.key] += 1
    assert all(700 < count < 1300 for count in counts.values())
    assert sum(counts.values()) == 4000


def test_round_robin_by_weight() -> None:
    everyone = replicas(3, 1)
    counts: Counter[str] = Counter()
    for _ in range(400):
        replica = PICKS["round-robin"](everyone, 0.0, Random())
        replica.begin()
        counts[replica.key] += 1
    assert counts == {"http://0": 300, "http://1": 100}


def test_affinity_moves_only_the_keys_of_who_is_gone() -> None:
    everyone = replicas(1, 1, 2)
    before = {str(key): by_affinity(everyone, str(key)) for key in range(1000)}
    shares = Counter(replica.key for replica in before.values())
    assert 170 < shares["http://0"] < 330
    assert 400 < shares["http://2"] < 600
    after = {key: by_affinity(everyone[1:], key) for key in before}
    assert all(after[key] is replica for key, replica in before.items() if replica is not everyone[0])


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"endpoint-load-metrics": "TEXT cpu_utilization=0.3, named_metrics.kv_cache_utilization=0.7"}, 0.7),
        (
            {"endpoint-load-metrics": 'JSON {"cpu_utilization": 0.3, "named_metrics": {"kv_cache_usage_perc": 0.6}}'},
            0.6,
        ),
        ({"endpoint-load-metrics": "text application_utilization=1.8"}, 1.0),
        ({"endpoint-load-metrics": "BIN CZqZmZmZmbk/"}, None),
        ({"endpoint-load-metrics": "JSON [1, 2"}, None),
        ({"endpoint-load-metrics": "JSON 7"}, None),
        ({"endpoint-load-metrics": "TEXT cpu_utilization=nan, x"}, None),
        ({"endpoint-load-metrics": 'JSON {"cpu_utilization": true}'}, None),
        ({"x-queue-time": "30", "x-inference-time": "10"}, 0.75),
        ({"x-queue-time": "0"}, 0.0),
        ({"x-queue-time": "-5"}, None),
        ({"x-queue-time": "soon"}, None),
        ({}, None),
    ],
)
def test_what_servers_report(headers: dict[str, str], expected: float | None) -> None:
    found = utilisation_of(Headers(headers.items()))
    assert found == expected if expected is None else found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("url", "rest"),
    [
        ("http://svc/v1/embeddings?x=1", "/embeddings?x=1"),
        ("HTTP://SVC:80/v1/a", "/a"),
        ("http://u:p@svc/v1/a#f", "/a"),
        ("http://svc/v1", ""),
        ("http://svc/v1?a", "?a"),
        ("http://svc/v10/a", None),
        ("http://svc:81/v1/a", None),
        ("https://svc/v1/a", None),
        ("http://svc.evil/v1/a", None),
        ("http://other/v1/a", None),
    ],
)
def test_which_calls_are_the_services(url: str, rest: str | None) -> None:
    service = Service(BalanceOptions(endpoints=("http://a",), url="http://svc/v1"))
    assert service.rest_of(url) == rest


def test_without_a_url_the_endpoints_own_addresses_are_meant() -> None:
    service = Service(BalanceOptions(endpoints=("http://a:1", "http://b:2/v1")))
    assert service.rest_of("http://a:1/x") == "/x"
    assert service.rest_of("http://b:2/v1/x") == "/x"
    assert service.rest_of("http://b:2/x") is None
    assert Service(BalanceOptions(endpoints=("http://a",), url="*")).rest_of("https://any/x?y") == "/x?y"


def _request(url: str = "http://svc/e?q=1", **headers: str) -> Request:
    return Request("POST", url, Headers(headers.items()), Body.of(b"x"))


def test_a_call_on_its_way_to_a_replica() -> None:
    made = Target(Endpoint("https://gpu-1:8443/base/")).addressed(_request(), "/e?q=1")
    assert made.url == "https://gpu-1:8443/base/e?q=1"
    assert made.extensions["endpoint"] == "https://gpu-1:8443/base"


def test_an_address_in_place_of_a_name() -> None:
    target = Target(Endpoint("https://gpu:8443/v1"), "fd00::1")
    made = target.addressed(_request(), "/e")
    assert made.url == "https://[fd00::1]:8443/v1/e"
    assert made.extensions["host"] == "gpu:8443"
    assert made.extensions["server_hostname"] == "gpu"
    plain = Target(Endpoint("http://gpu"), "10.0.0.1").addressed(_request(), "/e")
    assert plain.url == "http://10.0.0.1/e"
    assert plain.extensions["host"] == "gpu"
    assert "server_hostname" not in plain.extensions


def test_credentials() -> None:
    given = {"Authorization": "Bearer caller", "X-Api-Key": "caller", "Cookie": "c=1", "X-Trace": "t"}
    plain = Target(Endpoint("http://a")).addressed(_request(**given), "/e").headers
    assert plain["authorization"] == "Bearer caller"
    assert "cookie" not in plain
    own = Target(Endpoint("http://b", auth="key-b", headers=(("X-Tenant", "t"),))).addressed(_request(**given), "/e")
    assert own.headers["authorization"] == "Bearer key-b"
    assert own.headers["x-tenant"] == "t"
    assert own.headers["x-trace"] == "t"
    assert "x-api-key" not in own.headers
    same = Target(Endpoint("http://svc:9")).addressed(_request(**given), "/e").headers
    assert same["cookie"] == "c=1"
    basic = Target(Endpoint("http://b", auth="user:pass")).addressed(_request(), "/e").headers
    assert basic["authorization"] == "Basic dXNlcjpwYXNz"


def test_secrets_do_not_show() -> None:
    endpoint = Endpoint("http://b", auth="s3cret", headers=(("Authorization", "s3cret"),))
    assert "s3cret" not in repr(endpoint)
    assert "s3cret" not in repr(BalanceOptions(endpoints=(endpoint,)))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"endpoints": ("ftp://a",)}, "url must be http"),
        ({"endpoints": ("http://u:p@a",)}, "credentials go into headers or auth"),
        ({"endpoints": ("http://a", "http://a/")}, "there twice"),
        ({"endpoints": ("http://a",), "url": "svc"}, "url must be"),
        ({"endpoints": ("http://a",), "eject_time": 0.0}, "eject_time"),
        ({"endpoints": ("http://a",), "eject_after": -1}, "eject_after"),
        ({"endpoints": ("http://a",), "max_connection_age": 0.0}, "max_connection_age"),
    ],
)
def test_wrong_options(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        BalanceOptions(**options)  # type: ignore[arg-type]
