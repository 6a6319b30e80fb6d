"""A layer that sends a request elsewhere takes along what the caller gave, and nothing of the old origin's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from netkit_adapters.requests import edge_of

import netkit
from netkit.flow import compose
from netkit.testing import MockGPU

PLAIN = {"retry": False, "pool": False, "http2": False}


@pytest.fixture(scope="module")
def replica() -> Iterator[MockGPU]:
    with MockGPU(tls=False, launch_ms=0) as gpu:
        yield gpu


@pytest.fixture
def elsewhere(replica: MockGPU, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MockGPU:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    replica.log.clear()
    return replica


def _moved(url: str, **changes: Any) -> netkit.Session:
    """A session with a layer that sends everything to `url`."""

    async def move(request: Any, send: Any) -> Any:
        headers = request.headers
        for name, value in changes.items():
            headers = headers.set(name, value)
        return await send(request.replace(url=url, **({"headers": headers} if changes else {})))

    session = netkit.Session(plugins=PLAIN)
    edge = edge_of(session)
    edge._default = compose([move], edge._terminal)
    edge._bare = False
    return session


def _seen(gpu: MockGPU, name: str) -> str | None:
    (request,) = gpu.log.requests
    return request.header(name)


def test_what_the_caller_gave_goes_along(elsewhere: MockGPU) -> None:
    with _moved(f"{elsewhere.url}/echo") as session:
        session.get("http://old.test/x", auth=("user", "pass"), headers={"X-Api-Key": "k", "Cookie": "mine=1"})
    assert _seen(elsewhere, "authorization") == requests.auth._basic_auth_str("user", "pass")
    assert (_seen(elsewhere, "x-api-key"), _seen(elsewhere, "cookie")) == ("k", "mine=1")
    assert _seen(elsewhere, "host") == elsewhere.url.partition("://")[2]


def test_credentials_in_the_old_url_stay_behind(elsewhere: MockGPU) -> None:
    with _moved(f"{elsewhere.url}/echo") as session:
        session.get("http://user:secret@old.test/x")
    assert _seen(elsewhere, "authorization") is None


def test_credentials_from_netrc_stay_behind(elsewhere: MockGPU, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine old.test login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    with _moved(f"{elsewhere.url}/echo") as session:
        session.get("http://old.test/x")
    assert _seen(elsewhere, "authorization") is None


def test_cookies_of_the_old_origin_stay_behind_and_those_of_the_new_one_are_found(elsewhere: MockGPU) -> None:
    with _moved(f"{elsewhere.url}/echo") as session:
        session.cookies.set("old", "1", domain="old.test", path="/")
        session.cookies.set("new", "1", domain="127.0.0.1", path="/")
        session.get("http://old.test/x")
    assert _seen(elsewhere, "cookie") == "new=1"


def test_a_host_header_of_the_old_origin_stays_behind(elsewhere: MockGPU) -> None:
    with _moved(f"{elsewhere.url}/echo") as session:
        session.get("http://old.test/x", headers={"Host": "old.test"})
    assert _seen(elsewhere, "host") == elsewhere.url.partition("://")[2]


def test_what_a_layer_set_itself_goes_along(elsewhere: MockGPU) -> None:
    with _moved(f"{elsewhere.url}/echo", Authorization="Bearer new") as session:
        session.get("http://user:secret@old.test/x")
    assert _seen(elsewhere, "authorization") == "Bearer new"


def test_another_path_of_the_same_origin_keeps_everything(elsewhere: MockGPU, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    with _moved(f"{elsewhere.url}/echo") as session:
        session.cookies.set("old", "1", domain="127.0.0.1", path="/")
        session.get(f"{elsewhere.url}/other")
    assert _seen(elsewhere, "authorization") == requests.auth._basic_auth_str("user", "secret")
    assert _seen(elsewhere, "cookie") == "old=1"
