"""httpx's `target` extension asks for another path than the URL's: answers are not shared over it."""

from __future__ import annotations

from typing import Any

import pytest

import netkit.httpx
import netkit.httpx2
from netkit.config import Config
from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer


@pytest.mark.parametrize("client_class", [netkit.httpx.Client, netkit.httpx2.Client])
def test_another_target_is_another_question(client_class: Any) -> None:
    with MockGPU(http="1.1", tls=False) as gpu:
        for name in ("a", "b"):
            gpu.route(f"/{name}/score", lambda exchange, name=name: Answer.json({"who": name}))
        with client_class(plugins={"cache": True, "coalesce": True}, config=Config()) as client:

            def ask(target: bytes) -> str:
                answer = client.post(f"{gpu.url}/a/score", json={"q": 1}, extensions={"target": target})
                return answer.json()["who"]  # type: ignore[no-any-return]

            assert [ask(b"/a/score"), ask(b"/b/score"), ask(b"/a/score"), ask(b"/b/score")] == ["a", "b", "a", "b"]
        assert [record.target for record in gpu.log.requests] == ["/a/score", "/b/score"]
