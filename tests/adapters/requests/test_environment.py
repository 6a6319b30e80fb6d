"""The environment: asked as rarely as can be, and never answered from memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import requests
from netkit_adapters.requests import environment

import netkit
from netkit.testing import MockGPU


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    return tmp_path


def test_silence_is_noticed_and_its_end_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.is_silent()
    for name in (
        "http_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "NO_PROXY",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NETRC",
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, "x")
            assert not environment.is_silent(), name
        assert environment.is_silent()
    (home / ".netrc").write_text("machine h login u password p\n")
    assert not environment.is_silent()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (requests.sessions, "get_netrc_auth"),
        (requests.sessions, "get_environ_proxies"),
        (requests.utils, "getproxies"),
    ],
)
def test_whoever_answers_in_its_place_is_asked(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, lambda *args, **kwargs: None)
    assert not environment.is_silent()


def test_trust_env_reads_as_it_was_set() -> None:
    session = netkit.Session()
    assert session.trust_env is True
    session.trust_env = False
    assert session.trust_env is False
    assert session.__getstate__()["trust_env"] is False


@pytest.mark.parametrize("make", [requests.Session, netkit.Session])
def test_a_proxy_set_between_two_requests_is_used(gpu: MockGPU, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as session:
        assert session.get(f"{gpu.url}/echo").ok
        monkeypatch.setenv("http_proxy", gpu.url)
        session.get("http://elsewhere.test/echo")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        session.get(f"{gpu.url}/echo")
    targets = [request.target for request in gpu.log.requests]
    assert targets == ["/echo", "http://elsewhere.test/echo", "/echo"]


@pytest.mark.parametrize("make", [requests.Session, netkit.Session])
def test_a_netrc_file_that_appears_is_read(gpu: MockGPU, make: Any, home: Path) -> None:
    with make() as session:
        session.get(f"{gpu.url}/echo")
        (home / ".netrc").write_text("machine 127.0.0.1 login user password secret\n")
        (home / ".netrc").chmod(0o600)
        session.get(f"{gpu.url}/echo")
        (home / ".netrc").unlink()
        session.get(f"{gpu.url}/echo")
    assert [request.header("authorization") is not None for request in gpu.log.requests] == [False, True, False]


def test_a_bundle_variable_is_obeyed(gpu: MockGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    with MockGPU(launch_ms=0) as secure, netkit.Session() as session:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(secure.ca_file))
        assert session.get(f"{secure.url}/echo").ok
        monkeypatch.delenv("REQUESTS_CA_BUNDLE")
        with pytest.raises(requests.exceptions.SSLError):
            session.get(f"{secure.url}/echo")


def test_a_platform_that_asks_elsewhere_is_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_READABLE", False)
    assert not environment.is_silent()
    assert os.environ
