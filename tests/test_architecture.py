"""The shape of the house: which way imports point, what is public, what `import netkit` costs, which hooks exist."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netkit.hookspecs import Hooks

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "netkit": ROOT / "netkit",
    "netkit_plugins": ROOT / "plugins" / "netkit_plugins",
    "netkit_adapters": ROOT / "adapters" / "netkit_adapters",
}
FACADES = frozenset({"netkit", "netkit.requests", "netkit.httpx", "netkit.httpx2", "netkit.aiohttp"})
"""They name adapters for type checkers; at run time they find them by name."""

STACKS = frozenset({"requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"})
PLUGIN_LIBRARIES = frozenset(
    {"tenacity", "pybreaker", "msgspec", "redis", "PIL", "opentelemetry", "prometheus_client", "ngh2", "h2"}
)


class Source:
    """One module: its dotted name and its syntax tree."""

    def __init__(self, package: str, path: Path) -> None:
        parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
        self.name = ".".join([package, *(part for part in parts if part != "__init__")])
        self.is_package = path.name == "__init__.py"
        self.tree = ast.parse(path.read_text())

    @property
    def is_public(self) -> bool:
        return not any(part.startswith("_") for part in self.name.split("."))

    def imports(self, *, type_checking: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(module, names) of every import, those for type checkers only where they are asked for."""
        skipped = set() if type_checking else {id(node) for node in self._for_type_checkers()}
        for node in ast.walk(self.tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.Import):
                yield from ((alias.name, ()) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self.name.split(".")
                if node.level:
                    base = base[: len(base) - node.level + self.is_package]
                module = ".".join([*base, node.module or ""]).rstrip(".") if node.level else node.module or ""
                yield module, tuple(alias.name for alias in node.names)

    def _for_type_checkers(self) -> Iterator[ast.AST]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
                for inner in node.body:
                    yield from ast.walk(inner)

    def exported(self) -> list[str] | None:
        """The literal `__all__`, None where there is none."""
        for node in self.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                found: list[str] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                return list(found)
        return None

    def defined(self) -> set[str]:
        """Functions and classes at its top level whose names do not start with an underscore."""
        return {
            node.name
            for node in self.tree.body
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and not node.name.startswith("_")
        }

    def bound(self) -> set[str]:
        """Every name that exists at its top level."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.alias):
                names.add(node.asname or node.name.partition(".")[0])
        return names


SOURCES = [
    Source(package, path)
    for package, directory in PACKAGES.items()
    for path in sorted(directory.rglob("*.py"))
    if "__pycache__" not in path.parts
]
BY_NAME = {source.name: source for source in SOURCES}


def _of(package: str) -> list[Source]:
    return [source for source in SOURCES if source.name.split(".")[0] == package]


def _top(module: str) -> str:
    return module.partition(".")[0]


def test_the_core_imports_neither_plugins_nor_adapters() -> None:
    wrong = [
        f"{source.name} imports {module}"
        for source in _of("netkit")
        for module, _ in source.imports(type_checking=source.name not in FACADES)
        if _top(module) in ("netkit_plugins", "netkit_adapters")
    ]
    assert wrong == []


def test_the_core_imports_no_stack() -> None:
    # The kit and the command line are users of the stacks, inside the functions that need them.
    wrong = [
        f"{source.name} imports {module}"
        for source in _of("netkit")
        if not source.name.startswith(("netkit.testing", "netkit.cli"))
        for module, _ in source.imports(type_checking=source.name not in FACADES)
        if _top(module) in STACKS
    ]
    assert wrong == []


def test_plugins_import_netkit_and_their_libraries_only() -> None:
    allowed = {"netkit", "netkit_plugins", *PLUGIN_LIBRARIES, *sys.stdlib_module_names}
    wrong = [
        f"{source.name} imports {module}"
        for source in _of("netkit_plugins")
        for module, _ in source.imports(type_checking=True)
        if _top(module) not in allowed
    ]
    assert wrong == []


def test_a_plugin_imports_no_other_plugin() -> None:
    wrong = [
        f"{source.name} imports {module}"
        for source in _of("netkit_plugins")
        for module, _ in source.imports(type_checking=True)
        if _top(module) == "netkit_plugins" and module.split(".")[1:2] != source.name.split(".")[1:2]
    ]
    assert wrong == []


def test_plugins_use_public_names_only() -> None:
    wrong = []
    for source in _of("netkit_plugins"):
        for module, names in source.imports(type_checking=True):
            if _top(module) != "netkit":
                continue
            home = BY_NAME[module]
            public = home.exported() or []
            for name in names:
                submodule = BY_NAME.get(f"{module}.{name}")
                if not home.is_public or (name not in public and (submodule is None or not submodule.is_public)):
                    wrong.append(f"{source.name} uses {module}.{name}")
    assert wrong == []


def test_adapters_import_no_plugin() -> None:
    wrong = [
        f"{source.name} imports {module}"
        for source in _of("netkit_adapters")
        for module, _ in source.imports(type_checking=True)
        if _top(module) == "netkit_plugins"
    ]
    assert wrong == []


def test_an_adapter_imports_no_other_adapters_stack() -> None:
    own = {
        "requests": {"requests", "urllib3"},
        "httpx": {"httpx", "httpcore", "httpx2", "httpcore2"},
        "httpx2": {"httpx2", "httpcore2"},
        "aiohttp": {"aiohttp"},
    }
    wrong = [
        f"{source.name} imports {module}"
        for source in _of("netkit_adapters")
        for module, _ in source.imports(type_checking=True)
        if _top(module) in STACKS and _top(module) not in own[source.name.split(".")[1]]
    ]
    assert wrong == []


PUBLIC = [
    source for source in SOURCES if source.is_public and (source.name not in FACADES or source.name == "netkit")
]


@pytest.mark.parametrize("source", PUBLIC, ids=lambda source: source.name)
def test_all_names_exist_and_are_sorted_out(source: Source) -> None:
    exported = source.exported()
    if exported is None:
        assert not source.defined(), f"{source.name} defines public names and has no __all__"
        return
    assert len(exported) == len(set(exported)), f"{source.name}: __all__ names something twice"
    if not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in source.tree.body):
        assert set(exported) - source.bound() == set(), f"{source.name}: __all__ names what is not there"
    hidden = {name for name in exported if name.startswith("_") and name != "__version__"}
    assert hidden == set(), f"{source.name}: __all__ names what is private"
    # Hook implementations are found by their names, not imported by them.
    hooks = {name for name in source.defined() if name.startswith(("netkit_", "pytest_"))}
    left_out = source.defined() - hooks - set(exported)
    assert left_out == set(), f"{source.name}: public, but not in __all__"


def test_importing_netkit_imports_no_stack() -> None:
    program = "import netkit, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (
        set(done.stdout.split()) & {*STACKS, "netkit_plugins", "netkit_adapters", "h2", "ngh2", "tenacity"} == set()
    )


@pytest.mark.parametrize("stack", ["requests", "httpx", "httpx2", "aiohttp"])
def test_one_stack_does_not_import_another(stack: str) -> None:
    program = f"import netkit.{stack}, sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    others = {"requests", "httpx", "httpx2", "aiohttp"} - {stack}
    assert set(done.stdout.split()) & others == set()


HOOKS = [name for name, _ in inspect.getmembers(Hooks, inspect.isfunction) if name.startswith("netkit_")]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_and_tested(hook: str) -> None:
    assert f"`{hook}`" in (ROOT / "docs" / "writing-a-plugin.md").read_text(), f"{hook} is not documented"
    implementations = [
        path.name
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == hook
    ]
    assert implementations, f"no test implements {hook}"


def test_every_extensions_key_is_documented() -> None:
    """Keys that plugins, adapters or the core read or write, as literals."""
    text = (ROOT / "docs" / "writing-a-plugin.md").read_text()
    sources = [source for source in SOURCES if not source.name.startswith("netkit.testing")]
    keys = {key for source in sources for node in ast.walk(source.tree) for key in _keys(node)}
    assert keys, "the search finds nothing any more"
    assert {key for key in keys if f"`{key}`" not in text} == set()


def _keys(node: ast.AST) -> Iterator[str]:
    """The keys that one expression reads or writes."""
    if isinstance(node, ast.Subscript) and _is_neutral(node.value) and isinstance(node.slice, ast.Constant):
        yield str(node.slice.value)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr == "get" and _is_neutral(node.func.value) and isinstance(node.args[0], ast.Constant):
        yield str(node.args[0].value)
    if node.func.attr == "extend" and "request" in ast.unparse(node.func.value).lower():
        yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def _is_neutral(node: ast.expr) -> bool:
    """`request.extensions`, `response.extensions`, `self.extensions`, or a local `extensions`; not a native's."""
    text = ast.unparse(node)
    return text.endswith("extensions") and "native" not in text
