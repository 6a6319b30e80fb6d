"""huggingface_hub: an API call, and a download with its HEAD, redirect policy and streamed body."""

from __future__ import annotations

from pathlib import Path

import pytest

from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer, Exchange

from .conftest import Seen

hub = pytest.importorskip("huggingface_hub")

COMMIT = "a" * 40
WEIGHTS = bytes(range(256)) * 4096


@pytest.fixture(autouse=True)
def _fresh() -> None:
    hub.close_session()


def test_model_info(gpu: MockGPU, seen: Seen) -> None:
    gpu.route("/api/models/o/m", lambda _: Answer.json({"_id": "1", "id": "o/m", "sha": COMMIT, "siblings": []}))
    assert hub.HfApi(endpoint=gpu.url, token="hf_x").model_info("o/m").sha == COMMIT
    hub.close_session()
    seen.check(1)
    assert seen.requests[0].header("authorization") == "Bearer hf_x"


def test_download(gpu: MockGPU, seen: Seen, tmp_path: Path) -> None:
    def serve(exchange: Exchange) -> Answer:
        headers = [("etag", '"abc"'), ("x-repo-commit", COMMIT), ("content-length", str(len(WEIGHTS)))]
        return Answer(200, headers, b"" if exchange.method == "HEAD" else WEIGHTS)

    gpu.route("/o/m/resolve/main/model.bin", serve)
    gpu.route(f"/o/m/resolve/{COMMIT}/model.bin", serve)
    path = hub.hf_hub_download("o/m", "model.bin", cache_dir=tmp_path, endpoint=gpu.url, token=False)
    hub.close_session()
    assert Path(path).read_bytes() == WEIGHTS
    assert [request.method for request in seen.requests] == ["HEAD", "GET"]
    seen.check(2)
