"""Libraries that sit on the stacks: their own suites, with `netkit.install()` before anything is imported, and ours.

Rules of this file: as of `suites.py`. Versions are named here, for none of these is installed beside netkit.
"""

from __future__ import annotations

from tests.compat.suites import Suite

LIBRARIES: dict[str, Suite] = {
    suite.stack: suite
    for suite in (
        # SDKs, and libraries whose distribution has no tests (CacheControl, respx).
        Suite(
            stack="sdks",
            sdist="",
            peer="",
            ours=True,
            on=("requests", "httpx", "httpx2", "aiohttp"),
            folder="tests/sdks",
            modules=("tests/test_*.py",),
            files=(),
            arguments=("-W", "error", "-o", "asyncio_mode=auto"),
            requirements=(
                "anthropic>=2.15,<3",
                "cachecontrol>=0.14,<0.15",
                "h11>=0.16,<0.17",
                "trustme>=1.2,<2",
                "gql[aiohttp,httpx,requests]>=4.4,<5",
                "huggingface-hub>=2.4,<3",
                "openai>=3.57,<4",
                "pygithub>=2.10,<3",
                "pytest-asyncio>=1",
                "qdrant-client>=1.20,<2",
                "respx>=0.23,<0.24",
            ),
        ),
        Suite(
            stack="responses",
            sdist="responses",
            peer="responses",
            version="0.26.3",
            on=("requests",),
            folder="responses/tests",
            modules=("tests/test_*.py",),
            files=("tox.ini",),
            arguments=("--asyncio-mode=auto",),
            requirements=("pytest-asyncio", "pytest-httpserver", "tomli", "tomli-w"),
            edits=(("from responses.tests", "from tests"),),
        ),
        Suite(
            stack="requests-mock",
            sdist="requests-mock",
            peer="requests-mock",
            version="1.12.1",
            on=("requests",),
            modules=("tests/test_*.py", "tests/pytest/test_*.py"),
            files=(),
            requirements=("fixtures", "purl", "testtools", "requests-futures"),
            explained={
                "tests/test_adapter.py::SessionAdapterTests::test_adapter_is_connection": (
                    "`response.connection` stands for the adapter and has the chain around it: what is sent through "
                    "it (a digest's second leg) passes netkit, too"
                )
            },
        ),
        Suite(
            stack="requests-toolbelt",
            sdist="requests-toolbelt",
            peer="requests-toolbelt",
            version="1.0.0",
            on=("requests",),
            modules=("tests/test_*.py", "tests/threaded/test_*.py"),
            files=(),
            requirements=("betamax", "trustme", "pyopenssl"),
        ),
        Suite(
            stack="requests-oauthlib",
            sdist="requests-oauthlib",
            peer="requests-oauthlib",
            version="2.0.0",
            on=("requests",),
            modules=("tests/test_*.py",),
            files=(),
            requirements=("requests-mock", "oauthlib[signedtoken]"),
        ),
        Suite(
            stack="betamax",
            sdist="betamax",
            peer="betamax",
            version="0.9.0",
            on=("requests",),
            modules=("tests/unit/test_*.py", "tests/integration/test_*.py", "tests/regression/test_*.py"),
            files=(),
            requirements=(),
        ),
        Suite(
            stack="vcrpy",
            sdist="vcrpy",
            peer="vcrpy",
            version="9.4.2",
            on=("requests", "httpx", "httpx2", "aiohttp"),
            modules=("tests/unit/test_*.py", "tests/integration/test_*.py"),
            files=("pyproject.toml",),
            pytest="pytest>=9,<10",
            requirements=(
                "boto3",
                "cryptography",
                "httpbin>=0.10.3",
                "httplib2",
                "pysocks",
                "pytest-aiohttp",
                "pytest-asyncio",
                "pytest-httpbin",
                "tornado",
            ),
        ),
        Suite(
            stack="pytest-httpx",
            sdist="pytest-httpx",
            peer="pytest-httpx",
            version="0.36.2",
            on=("httpx",),
            modules=("tests/test_*.py",),
            files=("pyproject.toml",),
            pytest="pytest>=9,<10",
            requirements=("pytest-asyncio==1.*",),
        ),
        Suite(
            stack="aioresponses",
            sdist="aioresponses",
            peer="aioresponses",
            version="0.7.9",
            # aiohttp 3.14 makes its ClientResponse in another way than this version knows.
            pins={"aiohttp": "3.13.*"},
            on=("aiohttp",),
            modules=("tests/test_*.py",),
            files=(),
            requirements=("ddt>=1.7.2", "yarl", "pytest-asyncio"),
        ),
    )
}
