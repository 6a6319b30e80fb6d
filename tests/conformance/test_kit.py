"""The kit itself: a plugin that breaks a rule is found out, by the rule that names what it broke."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from netkit import Context, Layer, Request, Response, Send, hookimpl
from netkit.plugins import registry
from netkit.testing import conformance
from netkit.testing.conformance._rules import LAYER_RULES, RULES


@dataclass(frozen=True)
class Options:
    pass


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Callable[[Layer], conformance.Subject]]:
    """Registers a layer for one test."""
    known = registry()

    def make(layer: Layer | Callable[[Context], Layer], *, per_session: bool = False) -> conformance.Subject:
        module: Any = ModuleType(f"broken_{request.node.name.replace('[', '_').rstrip(']')}")
        name = module.__name__

        def netkit_register(register: Any) -> None:
            register(name, lambda _, context: layer(context) if per_session else layer, options=Options)  # type: ignore[call-arg]

        module.netkit_register = hookimpl(netkit_register)
        known.register(module, name)
        return conformance.Subject(name)

    return make  # type: ignore[return-value]


def _failed(subject: conformance.Subject, *rules: str) -> set[str]:
    failed = set()
    for case in conformance.cases(subject, stacks=["httpx-async"]):
        if case.rule.name not in rules:
            continue
        try:
            case.run()
        except Exception:
            failed.add(case.rule.name)
    return failed


def _case(subject: conformance.Subject, rule: str, face: str) -> conformance.Case:
    found = conformance.cases(subject, stacks=[face])
    (case,) = [case for case in found if case.rule.name == rule and str(case.face) == face]
    return case


def test_every_rule_says_what_it_promises() -> None:
    for name, summary in [(rule.name, rule.summary) for rule in RULES] + [(r.name, r.summary) for r in LAYER_RULES]:
        assert summary.endswith("."), name


def test_case_names_are_unique() -> None:
    names = [str(case) for case in conformance.cases("retry")]
    assert len(names) == len(set(names))


def test_unknown_stacks_and_plugins_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown stack 'curl'"):
        conformance.cases("retry", stacks=["curl"])
    with pytest.raises(ModuleNotFoundError):
        conformance.cases("no_such_module_anywhere")
    with pytest.raises(ValueError, match="registers no layer"):
        conformance.cases("json")


async def _adds_a_header(request: Request, send: Send) -> Response:
    return await send(request.replace(headers=request.headers.add("x-undeclared", "1")))


async def _changes_the_body(request: Request, send: Send) -> Response:
    response = await send(request)
    response.observe(lambda chunk: chunk.replace(b"e", b"3"))
    return response


async def _reads_everything(request: Request, send: Send) -> Response:
    response = await send(request)
    await response.read()
    return response


async def _swallows_failures(request: Request, send: Send) -> Response:
    try:
        return await send(request)
    except Exception:
        return Response.of(502)


async def _translates_failures(request: Request, send: Send) -> Response:
    try:
        return await send(request)
    except Exception as error:
        raise RuntimeError("went wrong") from error


async def _asks_twice(request: Request, send: Send) -> Response:
    await (await send(request)).discard()
    return await send(request)


@pytest.mark.parametrize(
    ("layer", "face", "rule"),
    [
        (_adds_a_header, "requests", "a_get_is_byte_identical"),
        (_adds_a_header, "aiohttp", "a_multipart_body_is_byte_identical"),
        (_changes_the_body, "httpx", "redirects_keep_their_history"),
        (_changes_the_body, "aiohttp", "each_task_gets_its_own_answer"),
        (_reads_everything, "requests", "the_first_event_is_not_delayed"),
        (_reads_everything, "httpx2", "memory_per_stream_is_constant"),
        (_swallows_failures, "requests", "a_refused_connection_is_native"),
        (_translates_failures, "httpx-async", "a_reset_before_the_answer_is_native"),
        (_asks_twice, "httpx2-async", "a_json_body_is_byte_identical"),
    ],
)
def test_a_broken_layer_is_found(
    subject: Callable[[Layer], conformance.Subject], layer: Layer, face: str, rule: str
) -> None:
    case = _case(subject(layer), rule, face)
    with pytest.raises(Exception):  # noqa: B017 - an assertion, or the stack's own time-out
        case.run()


def test_a_leaked_permit_is_found(subject: Callable[..., conformance.Subject]) -> None:
    class Leaky:
        """Forgets to give back when it is cancelled."""

        def __init__(self) -> None:
            self.in_use = 0

        async def __call__(self, request: Request, send: Send) -> Response:
            self.in_use += 1
            try:
                response = await send(request)
            except asyncio.CancelledError:
                raise
            except BaseException:
                self.in_use -= 1
                raise
            response.observe(on_end=lambda _: self.give_back())
            return response

        def give_back(self) -> None:
            self.in_use -= 1

        def stats(self) -> dict[str, int]:
            return {"in_use": self.in_use}

    leaky = subject(lambda _: Leaky(), per_session=True)
    noticing = {
        "cancelling_at_every_await_leaks_nothing",
        "cancelling_one_of_many_harms_no_other",
        "a_call_can_be_cancelled_at_any_step",
    }
    not_cancelling = {"a_get_is_byte_identical", "counters_return_to_zero", "each_task_gets_its_own_answer"}
    assert _failed(leaky, *noticing, *not_cancelling) == noticing


def test_a_foreign_await_is_found(subject: Callable[..., conformance.Subject]) -> None:
    async def foreign(request: Request, send: Send) -> Response:
        await asyncio.sleep(0)
        return await send(request)

    broken = subject(foreign)
    (case,) = [c for c in conformance.cases(broken) if c.rule.name == "an_unread_answer_is_held_until_its_end"]
    with pytest.raises(AssertionError, match="foreign"):
        case.run()
    with pytest.raises(Exception, match="threads runtime cannot wait"):
        _case(broken, "a_get_is_byte_identical", "requests").run()


def test_check_reports_every_failure_by_name(subject: Callable[..., conformance.Subject]) -> None:
    with pytest.raises(ExceptionGroup, match="conformance cases failed") as caught:
        conformance.check(subject(_adds_a_header), stacks=["requests"])
    notes = [note for error in caught.value.exceptions for note in error.__notes__]
    assert any("a_get_is_byte_identical" in note for note in notes)
