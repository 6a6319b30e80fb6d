"""`pytest --netkit-plugin package.module`: the conformance kit as tests of the run. Loaded in every pytest run.

Rules of this file:

- Without the option nothing is imported, collected or changed.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from netkit.testing.conformance import Case

__all__: list[str] = []

_KIT = "netkit.testing.conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("netkit", "conformance of netkit plugins")
    group.addoption(
        "--netkit-plugin", action="append", default=[], metavar="MODULE",
        help="run the conformance kit on a plugin: a module with hooks, or a plugin's name (repeatable)",
    )  # fmt: skip
    group.addoption(
        "--netkit-plugin-options", metavar="JSON", default=None, help="options of the plugin, as a JSON object"
    )
    group.addoption(
        "--netkit-stack", action="append", default=[], metavar="NAME",
        help="only these stacks: requests, httpx, httpx-async, httpx2, httpx2-async, aiohttp (repeatable)",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # Only where the kit is not in memory yet: a program that imported it before pytest began keeps plain asserts.
    if _KIT not in sys.modules:
        pytest.register_assert_rewrite(_KIT)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    plugins = config.getoption("--netkit-plugin")
    if plugins:
        options = _options(config.getoption("--netkit-plugin-options"))
        for plugin in plugins:
            collector = _Kit.from_parent(session, name=plugin, nodeid=f"netkit-conformance::{plugin}")
            collector.read(plugin, options, config.getoption("--netkit-stack") or None)
            items.extend(collector.collect())


def pytest_unconfigure(config: pytest.Config) -> None:
    kit = sys.modules.get(_KIT)
    if kit is not None:
        kit.Servers.close_shared()


def _options(text: str | None) -> dict[str, Any] | None:
    try:
        options = None if text is None else json.loads(text)
    except ValueError as error:
        raise pytest.UsageError(f"--netkit-plugin-options: not JSON: {error}") from error
    if options is not None and not isinstance(options, dict):
        raise pytest.UsageError("--netkit-plugin-options: must be a JSON object")
    return options


class _Kit(pytest.Collector):
    """All cases of one `--netkit-plugin`."""

    cases: list[Case]

    def read(self, plugin: str, options: dict[str, Any] | None, stacks: list[str] | None) -> None:
        from netkit.errors import NetkitError
        from netkit.testing import conformance

        try:
            self.cases = conformance.cases(plugin, options, stacks=stacks)
        except (NetkitError, ImportError, ValueError) as error:
            raise pytest.UsageError(f"--netkit-plugin {plugin}: {error}") from error

    def collect(self) -> Iterator[pytest.Item]:
        for case in self.cases:
            item = _Item.from_parent(self, name=str(case))
            item.case = case
            yield item


class _Item(pytest.Item):
    """One case."""

    case: Case

    def runtest(self) -> None:
        self.case.run()

    def reportinfo(self) -> tuple[str, int | None, str]:
        return "netkit-conformance", None, f"{self.case}: {self.case.rule.summary}"
