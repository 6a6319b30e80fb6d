"""The pure parts: headers, the server's word, the way back, the adaptive number, tokens, keys."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netkit_plugins.limit.asked import PICTURE, asked_of, estimate
from netkit_plugins.limit.identity import credential, key_of
from netkit_plugins.limit.ramp import Ramp
from netkit_plugins.limit.reported import Report, duration, report_of
from netkit_plugins.limit.usage import TAIL, UsageReader
from netkit_plugins.limit.width import AdaptiveWidth, Answered, Width
from netkit_plugins.limit.word import MAX_PAUSE, Word

from netkit import Body, Headers, Request
from netkit.identity import Identities

SECRET = Identities(b"s")
WALL = 1_800_000_000.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("250ms", 0.25),
        ("1h2m3.5s", 3723.5),
        ("1d", 86400.0),
        ("7", 7.0),
        (" 0.5 ", 0.5),
        (str(int(WALL) + 30), 30.0),
        (str(int(WALL) * 1000 + 30_000), 30.0),
        (str(int(WALL) - 30), 0.0),
        *((value, None) for value in ("", "soon", "-1", "1x", "1s1", "s", "nan", "inf", "1e3", "1 s", "٣s")),
    ],
)
def test_durations(value: str, seconds: float | None) -> None:
    assert duration(value, WALL) == seconds


@given(st.text(max_size=20))
def test_no_value_breaks_the_reader(value: str) -> None:
    read = duration(value, WALL)
    assert read is None or read >= 0


def test_reports() -> None:
    assert report_of(Headers([("content-type", "x")]), WALL) is None
    headers = Headers(
        [
            ("X-RateLimit-Remaining-Requests", "59"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ]
    )
    assert report_of(headers, WALL) == Report(59, 1.0, 149984, 360.0)
    plain = Headers([("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", str(int(WALL) + 5))])
    assert report_of(plain, WALL) == Report(0, 5.0)
    half = Headers([("x-ratelimit-remaining-requests", "many"), ("x-ratelimit-reset-requests", "1s")])
    assert report_of(half, WALL) == Report()


def test_a_pause_is_told_once_and_lasts_to_its_latest_end() -> None:
    word = Word()
    assert word.pause(100.0, 1.0, sent=99.0) == 1.0
    assert word.pause(100.5, 1.0, sent=99.5) is None
    assert word.wait(100.5, 0) == 1.0
    assert word.wait(101.5, 0) == 0.0


def test_refusals_without_a_time_double_once_each_and_end_with_a_success() -> None:
    word, now, pauses = Word(), 100.0, []
    for _ in range(8):
        pauses.append(word.pause(now, None, sent=now))
        # A second one of the same round says nothing new.
        assert word.pause(now, None, sent=now - 1) is None
        now += 100.0
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    word.succeeded()
    assert word.pause(now, None, sent=now) == 1


def test_no_pause_is_longer_than_a_minute() -> None:
    word = Word()
    assert word.pause(100.0, 86400.0, sent=99.0) == MAX_PAUSE


def test_what_is_left_is_counted_down_and_forgotten_at_the_reset() -> None:
    word = Word()
    word.learn(100.0, Report(requests=3, requests_reset=10.0), unanswered=1, unanswered_tokens=0)
    for _ in range(2):
        assert word.wait(100.0, 0) == 0.0
        word.spend(100.0, 0)
    assert word.wait(100.0, 0) == 10.0
    assert word.wait(110.0, 0) == 0.0
    word.spend(110.0, 0)
    assert word.wait(110.0, 0) == 0.0


def test_tokens_that_are_left_decide_for_large_calls_only() -> None:
    word = Word()
    word.learn(100.0, Report(tokens=100, tokens_reset=5.0), unanswered=0, unanswered_tokens=20.0)
    assert word.wait(100.0, 80.0) == 0.0
    assert word.wait(100.0, 81.0) == 5.0


def test_no_tokens_left_holds_everybody() -> None:
    word = Word()
    word.learn(100.0, Report(tokens=0, tokens_reset=5.0), unanswered=0, unanswered_tokens=0.0)
    assert word.wait(100.0, 0.0) == 5.0


def test_after_a_pause_no_more_than_six_go_in_50_ms() -> None:
    ramp, now, gone = Ramp(10), 0.0, []
    while len(gone) < 200:
        now += ramp.wait(now)
        ramp.release(now)
        ramp.answer(success=True)
        gone.append(now)
    assert sum(moment <= 0.05 for moment in gone) == 6
    assert gone[-1] < 0.5
    assert ramp.is_over


def test_after_a_pause_the_first_answer_opens_the_way() -> None:
    ramp = Ramp(10)
    ramp.release(0.0)
    assert ramp.wait(0.5) == 0.5
    ramp.answer(success=True)
    for moment in (0.4, 0.5):
        assert ramp.wait(moment) == 0.0
        ramp.release(moment)
    assert ramp.wait(0.6) == pytest.approx(0.9)
    ramp.answer(success=False)
    assert ramp.wait(0.6) == 0.0
    assert not ramp.is_over


def test_a_server_that_works_for_long_refuses_nobody() -> None:
    ramp, now, gone = Ramp(100), 0.0, []
    while len(gone) < 100:
        now += ramp.wait(now)
        if ramp.wait(now) == 0:
            ramp.release(now)
            gone.append(int(now))
    assert [gone.count(second) for second in range(6)] == [1, 1, 2, 4, 8, 16]


def _answered(**changes: Any) -> Answered:
    return Answered(**{"sent": 0.0, "seconds": 0.1, "status": 200, "queue": None, "full": True, **changes})


def test_a_fixed_width_learns_nothing() -> None:
    width = Width(4)
    assert width.answered(1.0, _answered(status=429)) is None
    assert width.limit == 4


def test_the_adaptive_width_rises_by_one_each_round() -> None:
    width = AdaptiveWidth()
    rounds = []
    for _ in range(3):
        for _ in range(int(width.limit)):
            width.answered(1.0, _answered())
        rounds.append(width.limit)
    assert rounds == [10, 11, 12] or rounds == [11, 12, 13]


def test_the_adaptive_width_does_not_rise_unused() -> None:
    width = AdaptiveWidth()
    for _ in range(1000):
        width.answered(1.0, _answered(full=False))
    assert width.limit == 10


@pytest.mark.parametrize("status", [429, 503])
def test_a_round_of_refusals_halves_it_once(status: int) -> None:
    width = AdaptiveWidth()
    told = [width.answered(10.0 + n / 1000, _answered(sent=9.0, status=status)) for n in range(10)]
    assert width.limit == 5
    assert told == [str(status)] + [None] * 9
    for moment in (20.0, 30.0, 40.0, 50.0):
        width.answered(moment, _answered(sent=moment - 1, status=status))
    assert width.limit == 1


def test_other_failures_leave_it_alone() -> None:
    width = AdaptiveWidth()
    for status in (400, 404, 500, 502):
        assert width.answered(1.0, _answered(status=status)) is None
    assert width.limit == 10


def test_a_queue_at_the_server_lowers_it_by_a_tenth() -> None:
    width = AdaptiveWidth()
    assert width.answered(10.0, _answered(sent=9.0, queue=0.06)) == "queue"
    assert width.limit == 9
    assert width.answered(11.0, _answered(sent=10.5, queue=0.04)) is None


def test_answers_that_begin_to_take_longer_lower_it() -> None:
    width = AdaptiveWidth()
    now = 0.0
    for _ in range(200):
        now += 1
        width.answered(now, _answered(sent=now - 0.1, full=False))
    assert width.limit == 10
    for _ in range(10):
        now += 1
        width.answered(now, _answered(sent=now - 0.5, seconds=0.5))
    assert width.limit < 10


def _request(body: bytes) -> Request:
    return Request("POST", "http://h/v1/chat/completions", body=Body.of(body))


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b"", 0),
        (b"not json", 0),
        (b"[1, 2]", 0),
        (b'{"model": "m", "input": "12345678"}', 2),
        (b'{"input": ["1234", "12345"]}', 3),
        (b'{"input": [1, 2, 3]}', 3),
        (b'{"input": [[1, 2], [3]]}', 3),
        (b'{"prompt": "1234", "max_tokens": 100, "n": 2}', 201),
        (b'{"messages": [{"role": "user", "content": "1234"}], "max_completion_tokens": 9, "max_tokens": 5}', 11),
        (b'{"inputs": "1234", "max_tokens": "many", "n": true}', 1),
        (b'{"input": "data:image/png;base64,' + b"A" * 100_000 + b'"}', PICTURE),
        (b'{"inputs": ["' + b"A" * 100_000 + b'"]}', PICTURE),
    ],
)
def test_estimates(body: bytes, tokens: int) -> None:
    assert estimate(asked_of(_request(body))) == tokens


def test_a_model_that_is_no_string_is_no_model() -> None:
    asked = asked_of(_request(b'{"model": ["m"]}'))
    assert asked is not None
    assert asked.name is None


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (b'{"data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}', 8),
        (b'{"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"x": 1}, "completion_tokens": 4}}', 7),
        (b'{"usage":{"input_tokens":3,"output_tokens":5}}', 8),
        (b'data: {"choices": []}\n\ndata: {"usage": {"total_tokens": 12}}\n\ndata: [DONE]\n\n', 12),
        (b'{"content": "he said \\"total_tokens\\": 99"}', None),
        (b'{"data": []}', None),
        (b"", None),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_usage(answer: bytes, tokens: float | None, size: int) -> None:
    for packed in (answer, gzip.compress(answer)):
        reader = UsageReader()
        passed = b"".join(reader.chunk(packed[at : at + size]) for at in range(0, len(packed), size))
        assert passed == packed
        assert reader.tokens() == tokens


def test_usage_keeps_no_more_than_its_tail() -> None:
    reader = UsageReader()
    for _ in range(100):
        reader.chunk(b"x" * 10_000)
    reader.chunk(b'{"usage": {"total_tokens": 5}}')
    assert reader.tokens() == 5
    assert len(reader._tail) <= TAIL
    bomb = UsageReader()
    bomb.chunk(gzip.compress(b"\0" * (64 << 20)))
    assert len(bomb._tail) <= TAIL


def test_a_key_names_origin_account_and_model_and_no_secret() -> None:
    headers = Headers([("Authorization", "Bearer sk-1")])
    origin, key = key_of("HTTP://H:80/v1/x?key=s3cret", headers, "m", SECRET)
    assert origin == "http://h"
    assert "sk-1" not in key
    assert "s3cret" not in key
    assert key.startswith("http://h|")
    assert key.endswith("|m")
    others = [
        key_of("http://h:80/", Headers([("Authorization", "Bearer sk-2")]), "m", SECRET),
        key_of("http://h:80/", Headers([("api-key", "sk-1")]), "m", SECRET),
        key_of("http://h:80/", headers, "n", SECRET),
        key_of("http://h:80/", headers, "m", Identities(b"t")),
        key_of("http://i:80/", headers, "m", SECRET),
        key_of("http://user:pass@h:80/", headers, "m", SECRET),
        key_of("http://h:80/", Headers(), "m", SECRET),
    ]
    assert len({key, *(other for _, other in others)}) == len(others) + 1
    assert not any("pass" in key for _, key in others)


def test_a_deployment_in_the_path_is_the_model() -> None:
    assert key_of("http://h/openai/deployments/gpt%20a/chat?x", Headers(), None, SECRET)[1] == "http://h|-|gpt a"


def test_signed_requests_are_one_account() -> None:
    def signed(signature: str) -> Headers:
        scope = f"Credential=AKID/2026/region/bedrock/aws4_request, SignedHeaders=host, Signature={signature}"
        return Headers([("Authorization", f"AWS4-HMAC-SHA256 {scope}")])

    assert credential(signed("a")) == credential(signed("b")) != ""
    cookies = [Headers([("Authorization", "k"), ("Cookie", value)]) for value in ("a", "b")]
    assert credential(cookies[0]) == credential(cookies[1])
