"""Classes must be picklable by name, so each stack has modules of its own: copies but for the stack's name."""

from __future__ import annotations

import ast
from pathlib import Path

import netkit_adapters
import pytest

ADAPTERS = Path(netkit_adapters.__path__[0])


def _tree(stack: str, module: str) -> str:
    """The module as its syntax says it, with the other stack's name and without the order of its imports."""
    tree = ast.parse((ADAPTERS / stack / f"{module}.py").read_text().replace("httpx2", "httpx"))
    imports = (ast.Import, ast.ImportFrom)
    head = sorted(ast.dump(node) for node in tree.body if isinstance(node, imports))
    rest = [ast.dump(node) for node in tree.body if not isinstance(node, imports)]
    return "\n".join(head + rest)


@pytest.mark.parametrize("module", ["errors", "faces", "surface"])
def test_the_modules_of_httpx2_differ_from_those_of_httpx_in_the_name_alone(module: str) -> None:
    assert _tree("httpx2", module) == _tree("httpx", module)


def test_the_packages_offer_the_same_names() -> None:
    import netkit_adapters.httpx as first
    import netkit_adapters.httpx2 as second

    assert second.__all__ == first.__all__
    # What a later httpx2 exports besides is there too.
    assert first.MIRROR.keys() <= second.MIRROR.keys()
    for name in first.__all__:
        # httpx's own Client must not be served to httpx2's callers, nor the other way round.
        if isinstance(getattr(first, name), type):
            assert getattr(second, name) is not getattr(first, name)
            assert getattr(second, name).__module__.startswith("netkit_adapters.httpx2")
