"""Composition and the synchronous step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from netkit import PluginError, Request, Response, Send
from netkit.flow import compose, run_sync
from netkit.runtime import Threads

REQUEST = Request("GET", "http://h/")


async def terminal(request: Request) -> Response:
    return Response.of(200, request.headers)


def naming(name: str) -> Any:
    async def layer(request: Request, send: Send) -> Response:
        response = await send(request.replace(headers=request.headers.add("X-In", name)))
        response.extensions.setdefault("out", []).append(name)
        return response

    return layer


async def asks_asyncio(request: Request, send: Send) -> Response:
    await asyncio.sleep(0)
    return await send(request)


def test_layers_nest_outermost_first() -> None:
    response = run_sync(compose([naming("a"), naming("b")], terminal)(REQUEST))
    assert response.headers.get_all("x-in") == ["a", "b"]
    assert response.extensions["out"] == ["b", "a"]


async def test_the_same_chain_runs_in_a_loop() -> None:
    response = await compose([naming("a"), asks_asyncio, naming("b")], terminal)(REQUEST)
    assert response.headers.get_all("x-in") == ["a", "b"]


def test_without_layers_it_is_the_terminal_itself() -> None:
    assert compose([], terminal) is terminal


def test_an_exception_passes_through() -> None:
    async def broken(request: Request, send: Send) -> Response:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_sync(compose([naming("a"), broken], terminal)(REQUEST))


def test_a_foreign_await_is_an_error_that_names_the_layer() -> None:
    with pytest.raises(
        PluginError, match=r"^layer test_flow\.asks_asyncio awaited asyncio\.tasks\.sleep, which the threads"
    ):
        run_sync(compose([naming("a"), asks_asyncio], terminal)(REQUEST))


def test_the_layers_around_a_foreign_await_may_clean_up() -> None:
    runtime, cleaned = Threads(), []

    async def careful(request: Request, send: Send) -> Response:
        try:
            return await send(request)
        finally:
            await runtime.sleep(0)
            cleaned.append(True)

    with pytest.raises(PluginError):
        run_sync(compose([careful, asks_asyncio], terminal)(REQUEST))
    assert cleaned == [True]


@pytest.mark.parametrize("failure", [RuntimeError("a"), ValueError("b")])
def test_a_layer_that_fails_while_it_cleans_up_does_not_hide_the_culprit(failure: Exception) -> None:
    async def clumsy(request: Request, send: Send) -> Response:
        try:
            return await send(request)
        finally:
            raise failure

    with pytest.raises(PluginError, match="asks_asyncio"):
        run_sync(compose([clumsy, asks_asyncio], terminal)(REQUEST))


def test_a_layer_that_waits_again_while_it_cleans_up_does_not_hide_the_culprit() -> None:
    async def stubborn(request: Request, send: Send) -> Response:
        try:
            await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
        return await send(request)

    with pytest.raises(PluginError, match="stubborn"):
        run_sync(compose([stubborn], terminal)(REQUEST))
