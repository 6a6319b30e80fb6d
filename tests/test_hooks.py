"""Both hooks, as a plugin uses them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from netkit import Context, PluginError, Request, Response, Send, hookimpl
from netkit.config import Config
from netkit.edge import Edge
from netkit.events import CallEnded, CallStarted, Event
from netkit.flow import run_sync
from netkit.hookspecs import Register
from netkit.plugins import Registry
from netkit.runtime import Threads


@dataclass(frozen=True)
class Options:
    value: str = "a"


class Plugin:
    """Registers one layer and listens."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.made: list[tuple[Options, Context]] = []

    @hookimpl
    def netkit_register(self, register: Register) -> None:
        register("marking", self.make, options=Options, request_headers=("X-Mark",), summary="marks")

    @hookimpl
    def netkit_event(self, event: Event) -> None:
        self.events.append(event)

    def make(self, options: Options, context: Context) -> Any:
        self.made.append((options, context))

        async def marking(request: Request, send: Send) -> Response:
            return await send(request.replace(headers=request.headers.set("X-Mark", options.value)))

        return marking


async def _terminal(request: Request) -> Response:
    return Response.of(200, content=(request.headers.get("x-mark") or "none").encode())


@pytest.fixture
def plugin() -> Plugin:
    return Plugin()


def _edge(plugin: Plugin, **plugins: Any) -> Edge:
    known = Registry({}, use_entry_points=False)
    known.register(plugin, "marker")
    return Edge(
        stack="requests", runtime=Threads(), terminal=_terminal, plugins=plugins, config=Config(), known=known
    )


def _call(edge: Edge) -> bytes:
    request = Request("GET", "http://gpu.test/v1?secret=1")
    call = edge.begin(request)
    response = run_sync(edge.select(request.url)(request))
    content = run_sync(response.read())
    response.body.observe(on_end=edge.tell_end(request, call, response.status))
    response.body.end()
    return content


def test_a_registered_layer_runs_with_its_options_when_asked_for(plugin: Plugin) -> None:
    edge = _edge(plugin, marking={"value": "b"})
    assert [_call(edge), _call(edge)] == [b"b", b"b"]
    ((options, context),) = plugin.made
    assert options == Options("b")
    assert context.stack == "requests"


def test_a_plugin_that_nobody_asked_for_is_off_and_hears_nothing(plugin: Plugin) -> None:
    assert _call(_edge(plugin)) == b"none"
    assert plugin.made == []
    assert plugin.events == []


def test_events_reach_a_plugin_that_is_on_without_query_or_secret(plugin: Plugin) -> None:
    _call(_edge(plugin, marking=True))
    assert [type(event) for event in plugin.events] == [CallStarted, CallEnded]
    assert "secret" not in repr(plugin.events)


def test_a_listener_that_fails_changes_nothing(plugin: Plugin, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Plugin):
        @hookimpl
        def netkit_event(self, event: Event) -> None:
            raise RuntimeError("boom")

    assert _call(_edge(Broken(), marking=True)) == b"a"
    assert "a listener failed" in caplog.text


def test_a_hook_of_another_shape_is_refused() -> None:
    module: Any = ModuleType("misspelt")

    def netkit_register(register: Register, more: int) -> None:
        raise AssertionError("never called")

    module.netkit_register = hookimpl(netkit_register)
    with pytest.raises(PluginError, match="misspelt"):
        Registry({}, use_entry_points=False).register(module)


def test_a_failing_registration_names_the_plugin() -> None:
    module: Any = ModuleType("half_baked")

    def netkit_register(register: Register) -> None:
        register("half", lambda options, context: None, options=dict)

    module.netkit_register = hookimpl(netkit_register)
    with pytest.raises(PluginError, match=r"half_baked.*frozen dataclass"):
        Registry({}, use_entry_points=False).register(module)


def test_the_first_example_of_the_documentation_is_a_plugin() -> None:
    page = Path(__file__).parents[1] / "docs" / "writing-a-plugin.md"
    code = page.read_text().partition("```python\n")[2].partition("```")[0]
    module: Any = ModuleType("documented")
    sys.modules["documented"] = module
    try:
        exec(compile(code, str(page), "exec"), module.__dict__)
    finally:
        del sys.modules["documented"]
    known = Registry({}, use_entry_points=False)
    known.register(module)
    seen = []

    async def terminal(request: Request) -> Response:
        seen.append(request.headers.get("x-tenant"))
        return Response.of(200)

    plugins = {"tenant": {"name": "a"}}
    edge = Edge(stack="requests", runtime=Threads(), terminal=terminal, plugins=plugins, config=Config(), known=known)
    run_sync(edge.select("http://gpu.test/")(Request("GET", "http://gpu.test/")))
    assert seen == ["a"]
