"""The error tree and what travels with an error."""

from __future__ import annotations

import pickle

import pytest

from netkit import (
    BatchError,
    CircuitOpen,
    ConfigError,
    DeadlineExceeded,
    ImageError,
    NetkitError,
    PluginError,
    PoolTimeout,
    QueueFull,
    TransportError,
    Verdict,
    errors,
)
from netkit.errors import FailureKind


def test_the_tree_is_the_one_in_the_docstring() -> None:
    drawn = errors.__doc__ or ""
    for child, parent in (
        (ConfigError, NetkitError),
        (PluginError, NetkitError),
        (TransportError, NetkitError),
        (PoolTimeout, TransportError),
        (QueueFull, PoolTimeout),
        (CircuitOpen, TransportError),
        (DeadlineExceeded, TransportError),
        (BatchError, NetkitError),
        (ImageError, NetkitError),
    ):
        assert child.__bases__[0] is parent
        assert f"── {child.__name__}" in drawn
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ImageError, ValueError)


@pytest.mark.parametrize("made", [PoolTimeout("x"), QueueFull("x"), CircuitOpen("x")])
def test_what_netkit_refuses_was_not_sent(made: TransportError) -> None:
    assert made.verdict is Verdict.NOT_SENT


def test_unknown_failures_count_as_ambiguous() -> None:
    made = TransportError("x")
    assert (made.kind, made.verdict, made.attempts, made.native) == (FailureKind.OTHER, Verdict.AMBIGUOUS, 0, None)


def test_details_are_kept_by_name() -> None:
    assert CircuitOpen("x", retry_after=2.5).retry_after == 2.5
    assert CircuitOpen("x").retry_after == 0.0
    assert TransportError("x", code=7).details == {"code": 7}


def test_pickling_keeps_the_message_and_the_verdict_not_the_native_cause() -> None:
    made = QueueFull("full", verdict=Verdict.REFUSED, native=ValueError())
    made.attempts = 3
    copied = pickle.loads(pickle.dumps(made))
    assert type(copied) is QueueFull
    assert (str(copied), copied.kind, copied.verdict, copied.attempts) == (
        "full",
        FailureKind.POOL,
        Verdict.REFUSED,
        3,
    )
    assert copied.native is None
    assert copied.details == {}
