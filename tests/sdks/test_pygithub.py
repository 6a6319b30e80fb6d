"""PyGithub: a session with an adapter of its own, whose retries stay its own."""

from __future__ import annotations

from typing import Any

import pytest

from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer

from .conftest import Seen

github = pytest.importorskip("github")


def _github(gpu: MockGPU, **options: Any) -> Any:
    return github.Github(
        base_url=f"{gpu.url}/api/v3", auth=github.Auth.Token("t"), seconds_between_requests=None, **options
    )


def test_over_http2(gpu: MockGPU, seen: Seen) -> None:
    """`retry=0` leaves requests' own kind of adapter: one that HTTP/2 may stand in for."""
    gpu.route("/api/v3/user", lambda _: Answer.json({"login": "me"}))
    with _github(gpu, retry=0) as sdk:
        assert sdk.get_user().login == "me"
    seen.check(1)
    assert seen.requests[0].header("authorization") == "token t"


def test_retries_of_its_adapter_are_not_multiplied(gpu: MockGPU, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default adapter retries by itself, and is called: over HTTP/1.1, netkit's chain around it."""
    monkeypatch.setenv("NETKIT_RETRY", "true")
    gpu.route("/api/v3/user", lambda _: Answer.json({"message": "down"}, status=502))
    retry = github.GithubRetry(total=2, backoff_factor=0)
    with _github(gpu, retry=retry) as sdk, pytest.raises(Exception, match="502"):
        sdk.get_user().login  # noqa: B018
    seen.check(3, protocol="HTTP/1.1")
