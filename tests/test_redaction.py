"""URLs as they may be shown."""

from __future__ import annotations

import pytest

from netkit.redaction import safe_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "http://u:p@h/x?api_key=S&sig=S&q=ok#frag",
            "http://REDACTED:REDACTED@h/x?api_key=REDACTED&sig=REDACTED&q=ok",
        ),
        ("https://token@h:8443/a/b", "https://REDACTED@h:8443/a/b"),
        ("https://u:p@ss@h/", "https://REDACTED:REDACTED@h/"),
        (
            "https://h/x?X-Amz-Signature=S&X-Amz-Credential=S",
            "https://h/x?X-Amz-Signature=REDACTED&X-Amz-Credential=REDACTED",
        ),
        ("https://h/x?q=" + "a" * 60, "https://h/x?q=REDACTED"),
        ("https://h/x?" + "a" * 60, "https://h/x?REDACTED"),
        ("https://h/x?sk-0123456789abcdef", "https://h/x?REDACTED"),
        ("https://h/x?a=1;token=S&b=2;c=3", "https://h/x?a=1;token=REDACTED&b=2;c=3"),
        ("https://h/x?api%5F%6Bey=S&%70assword=S", "https://h/x?api%5F%6Bey=REDACTED&%70assword=REDACTED"),
        ("https://h/x;v=1;jsessionid=S/y;?q=ok", "https://h/x;v=1;jsessionid=REDACTED/y;?q=ok"),
        ("https://h/x?flag&page=2", "https://h/x?flag&page=2"),
        ("https://[::1]:80/x", "https://[::1]:80/x"),
        ("https://h?auth=S", "https://h?auth=REDACTED"),
        ("not a url with a secret", "REDACTED"),
    ],
)
def test_what_is_left(url: str, shown: str) -> None:
    assert safe_url(url) == shown
