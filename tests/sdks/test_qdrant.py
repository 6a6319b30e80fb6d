"""qdrant-client over REST: httpx clients that it makes itself."""

from __future__ import annotations

import pytest

from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer

from .conftest import Seen

qdrant = pytest.importorskip("qdrant_client")

FOUND = {"time": 0.0, "status": "ok", "result": {"collections": [{"name": "c"}]}}
POINTS = {"time": 0.0, "status": "ok", "result": {"points": [{"id": 1, "version": 0, "score": 0.5}]}}


def test_collections_and_queries(gpu: MockGPU, seen: Seen) -> None:
    gpu.route("/collections", lambda _: Answer.json(FOUND))
    gpu.route("/collections/c/points/query", lambda _: Answer.json(POINTS))
    sdk = qdrant.QdrantClient(url=gpu.url, check_compatibility=False)
    assert [found.name for found in sdk.get_collections().collections] == ["c"]
    assert sdk.query_points("c", query=[0.1, 0.2]).points[0].id == 1
    sdk.close()
    seen.check(2)


async def test_in_tasks(gpu: MockGPU, seen: Seen) -> None:
    gpu.route("/collections", lambda _: Answer.json(FOUND))
    sdk = qdrant.AsyncQdrantClient(url=gpu.url, check_compatibility=False)
    assert [found.name for found in (await sdk.get_collections()).collections] == ["c"]
    await sdk.close()
    seen.check(1)
