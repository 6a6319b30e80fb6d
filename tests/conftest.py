"""What every test gets: no TLS or proxy settings from the machine."""

from __future__ import annotations

import gc

import pytest

_FOREIGN = (
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    *(name for base in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (base, base.upper())),
    "NETKIT_CONFIG",
    "NETKIT_DISABLE",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _FOREIGN:
        monkeypatch.delenv(name, raising=False)


def pytest_collection_finish() -> None:
    """Many tests ask the collector whether something was left: what lives as long as the run, thousands of tests and
    all modules, need not be walked each time."""
    # It looks for referrers of what libraries register with it, and sees none among the frozen.
    import hypothesis  # noqa: F401

    gc.collect()
    gc.freeze()
