"""TLS settings belong to the connection that they made (CASE C78)."""

from __future__ import annotations

import pytest
from httpx_faces import EMBED, PATH, Face

from netkit.testing import MockGPU


def test_an_unverified_connection_never_serves_a_verifying_client(face: Face, gpu: MockGPU) -> None:
    careless = face.client(verify=False, base_url=gpu.url)
    assert face.run(careless.post(PATH, json=EMBED)).status_code == 200
    careful = face.client(verify=True, base_url=gpu.url)
    with pytest.raises(face.native.ConnectError):
        face.run(careful.post(PATH, json=EMBED))
    assert len(gpu.log.requests) == 1


def test_a_mount_that_does_not_verify_serves_its_origin_only(face: Face, gpu: MockGPU, plain_gpu: MockGPU) -> None:
    mounts = {"all://localhost": face.HTTPTransport(verify=False)}
    client = face.client(verify=True, mounts=mounts)
    port = gpu.url.rpartition(":")[2]
    assert face.run(client.get(f"https://localhost:{port}/v1/models")).status_code == 200
    with pytest.raises(face.native.ConnectError):
        face.run(client.get(f"https://127.0.0.1:{port}/v1/models"))
    assert len(gpu.log.requests) == 1
