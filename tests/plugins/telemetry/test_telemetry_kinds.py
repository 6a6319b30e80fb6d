"""What a URL is called in labels and spans."""

from __future__ import annotations

import pytest
from netkit_plugins.telemetry.kinds import address_of


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://Gpu.Example/v1", ("gpu.example", 443)),
        ("http://gpu:8000?x=a@b:1", ("gpu", 8000)),
        ("https://user:p%40ss@gpu:8443/", ("gpu", 8443)),
        ("http://[::1]:9000/", ("::1", 9000)),
        ("https://[::1]/", ("::1", 443)),
        ("http://gpu:port/", ("gpu", 80)),
        ("", ("", 80)),
    ],
)
def test_an_address_is_read_from_any_url(url: str, address: tuple[str, int]) -> None:
    assert address_of(url) == address


def test_a_malformed_url_is_the_stacks_to_refuse() -> None:
    host, port = address_of("http://[::1/")
    assert isinstance(host, str)
    assert isinstance(port, int)
