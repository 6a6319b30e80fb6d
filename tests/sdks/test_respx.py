"""respx, whose distribution has no tests: both of its ways in, and nothing that reaches a server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import netkit
from netkit.testing import MockGPU

from .conftest import Seen

respx = pytest.importorskip("respx")

MOCKERS = ["httpcore", "httpx"]


@pytest.mark.parametrize("using", MOCKERS)
def test_a_client_made_before_and_one_made_after(gpu: MockGPU, seen: Seen, using: str) -> None:
    with httpx.Client() as before:
        assert before.get(f"{gpu.url}/health").status_code == 200
        with respx.mock(using=using, assert_all_called=True) as router, httpx.Client() as after:
            route = router.get(f"{gpu.url}/health").respond(201, json={"mocked": True})
            assert [client.get(f"{gpu.url}/health").json() for client in (before, after)] == [{"mocked": True}] * 2
            assert httpx.get(f"{gpu.url}/health").status_code == 201
            assert route.call_count == 3
            # One more pass of the chain would be one more header.
            assert [call.request.headers.get_list("x-pass") for call in route.calls] == [["1"]] * 3
        assert before.get(f"{gpu.url}/health").http_version == "HTTP/2", "real again"
        assert netkit.stats(before).requests.total == 3
    seen.check(2)


@pytest.mark.parametrize("using", MOCKERS)
async def test_in_tasks(gpu: MockGPU, seen: Seen, using: str) -> None:
    async with httpx.AsyncClient() as client:
        async with respx.mock(using=using) as router:
            route = router.post(f"{gpu.url}/v1/embeddings").mock(side_effect=httpx.ConnectError)
            with pytest.raises(httpx.ConnectError):
                await client.post(f"{gpu.url}/v1/embeddings", json={"input": "x"})
            assert route.called
    seen.check(0)


@pytest.mark.parametrize("using", MOCKERS)
def test_what_is_not_mocked_is_refused(gpu: MockGPU, seen: Seen, using: str) -> None:
    with respx.mock(using=using), httpx.Client() as client:
        with pytest.raises(respx.models.AllMockedAssertionError):
            client.get(f"{gpu.url}/health")
    seen.check(0)


def test_a_transport_for_mocks(gpu: MockGPU, seen: Seen) -> None:
    router: Any = respx.Router()
    router.get("https://gpu.test/").respond(204)
    with httpx.Client(transport=httpx.MockTransport(router.handler)) as client:
        assert client.get("https://gpu.test/").status_code == 204
    seen.check(0)
