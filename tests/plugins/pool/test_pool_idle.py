"""How long an idle connection is trusted: plain asserts on numbers."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from netkit_plugins.pool import IdlePolicy, PoolOptions
from netkit_plugins.pool import idle as idle_module
from netkit_plugins.pool.sockets import socket_options

H = "http://h"


def policy(now: float = 0.0, **options: Any) -> IdlePolicy:
    return IdlePolicy(PoolOptions(**options), lambda: now)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_connections": 0}, "max_connections must be ≥ 1, got 0"),
        ({"max_connections_total": 0}, "max_connections_total must be ≥ 1, got 0"),
        ({"max_idle": -1}, "max_idle must be ≥ 0, got -1"),
        ({"max_requests": 0}, "max_requests must be ≥ 1, got 0"),
        ({"max_queue": -1}, "max_queue must be ≥ 0, got -1"),
        ({"warm": -1}, "warm must be ≥ 0, got -1"),
        ({"max_lifetime": 0.0}, "max_lifetime must be > 0, got 0"),
        ({"connect_timeout": 0.0}, "connect_timeout must be > 0, got 0"),
        ({"acquire_timeout": -1.0}, "acquire_timeout must be ≥ 0, got -1"),
        ({"idle_timeout": -1.0}, "idle_timeout must be ≥ 0, got -1"),
        ({"idle_timeout": "guess"}, "idle_timeout must be \"learn\" or seconds, got 'guess'"),
        ({"tcp_keepalive": (1, 2, 0)}, "tcp_keepalive must be three numbers ≥ 1, got (1, 2, 0)"),
    ],
)
def test_wrong_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        PoolOptions(**change)
    assert str(caught.value) == message


def test_it_starts_below_the_five_seconds_of_uvicorn() -> None:
    learned = policy()
    assert learned.idle_limit(H) == 4.0
    assert learned.discard_reason(H, idle=4.0, age=10, requests=1) is None
    assert learned.discard_reason(H, idle=4.1, age=10, requests=1) == "idle"


@pytest.mark.parametrize(("hint", "limit"), [(5, 4.5), (60, 59), (1, 0.9), (0, 0), (600, 599)])
def test_a_hint_sets_it_just_under(hint: float, limit: float) -> None:
    learned = policy()
    learned.keep_alive_hint(H, hint)
    assert learned.idle_limit(H) == pytest.approx(limit)
    assert learned.idle_limit("http://other") == 4.0
    for _ in range(20):
        learned.reused(H, learned.idle_limit(H))
    assert learned.idle_limit(H) == pytest.approx(limit)


def test_a_repeated_hint_does_not_undo_a_fall_but_a_new_one_does() -> None:
    learned = policy()
    learned.keep_alive_hint(H, 60)
    learned.died(H, 30)
    assert learned.idle_limit(H) == 24
    learned.keep_alive_hint(H, 60)
    assert learned.idle_limit(H) == 24
    learned.keep_alive_hint(H, 10)
    assert learned.idle_limit(H) == 9


def test_it_rises_step_by_step_on_what_worked() -> None:
    learned = policy()
    learned.reused(H, 1.0)
    assert learned.idle_limit(H) == 4.0
    learned.reused(H, 4.0)
    assert learned.idle_limit(H) == 5.0
    for _ in range(100):
        learned.reused(H, learned.idle_limit(H))
    assert learned.idle_limit(H) == 55.0


def test_it_falls_when_an_idle_connection_died() -> None:
    learned = policy()
    learned.died(H, 3.0)
    assert learned.idle_limit(H) == pytest.approx(2.4)
    learned.died(H, 30.0)
    assert learned.idle_limit(H) == pytest.approx(2.4)
    learned.died(H, 0.01)
    assert learned.idle_limit(H) == 0.25


def test_against_a_server_that_closes_at_five_seconds_it_settles_below() -> None:
    learned = policy()
    deaths = 0
    for _ in range(200):
        idle = learned.idle_limit(H)
        if idle >= 5.0:
            deaths += 1
            learned.died(H, idle)
        else:
            learned.reused(H, idle)
    assert deaths <= 200 / 4
    assert 3.5 < learned.idle_limit(H) <= 5.3


def test_a_restart_is_not_held_against_the_origin_for_ever() -> None:
    learned = policy()
    learned.reused(H, 4.0)
    learned.died(H, 0.5)
    assert learned.idle_limit(H) < 0.5
    for _ in range(100):
        learned.reused(H, learned.idle_limit(H))
    assert learned.idle_limit(H) > 4.0


def test_a_number_fixes_it() -> None:
    fixed = policy(idle_timeout=9)
    fixed.died(H, 1)
    fixed.reused(H, 9)
    fixed.keep_alive_hint(H, 2)
    assert fixed.idle_limit(H) == 9.0


def test_lifetime_is_jittered_per_connection_and_steady() -> None:
    lives = [policy(max_lifetime=100.0).lifetime(born / 7) for born in range(500)]
    assert min(lives) >= 90.0
    assert max(lives) <= 110.0
    assert max(lives) - min(lives) > 15.0
    assert len({round(life, 3) for life in lives}) > 100
    now = [1000.0]
    one = IdlePolicy(PoolOptions(max_lifetime=100.0), lambda: now[0])
    life = one.lifetime(1000.0)
    for age in (80.0, 89.0, life - 0.001):
        now[0] = 1000.0 + age
        assert one.discard_reason(H, idle=0, age=age, requests=1) is None
    now[0] = 1000.0 + life + 0.001
    assert one.discard_reason(H, idle=0, age=life + 0.001, requests=1) == "lifetime"
    assert policy(max_lifetime=None).discard_reason(H, idle=0, age=1e9, requests=1) is None


def test_max_requests() -> None:
    assert policy().discard_reason(H, idle=0, age=1, requests=10**6) is None
    counted = policy(max_requests=3)
    assert counted.discard_reason(H, idle=0, age=1, requests=2) is None
    assert counted.discard_reason(H, idle=0, age=1, requests=3) == "max_requests"


def test_what_is_known_of_origins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_module, "MAX_ORIGINS", 10)
    learned = policy()
    for number in range(100):
        learned.died(f"http://h{number}", 1.0)
    assert len(learned._origins) == 10
    assert "http://h99" in repr(learned)


def test_socket_options_are_accepted_by_the_system() -> None:
    found = socket_options(PoolOptions(tcp_keepalive=(61, 16, 5)))
    with socket.socket() as probe:
        for level, option, value in found:
            probe.setsockopt(level, option, value)
        assert probe.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 61
            assert probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 16
            assert probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 5
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 141_000
    assert socket_options(PoolOptions(tcp_keepalive=True)) == socket_options(PoolOptions())
    assert socket_options(PoolOptions(tcp_keepalive=False)) == ()
