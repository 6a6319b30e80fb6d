"""The program that `netkit run` runs: what `python SCRIPT`, `python -` or `python -m MODULE` would run.

Rules of this file:

- The program sees what Python would show it: `sys.argv`, `sys.path[0]`, and a `__main__` that stays when its code
  has ended, since threads, exit handlers and pickles look for it later.
- Its code is compiled by its own rules: nothing of netkit's `__future__` reaches it.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import marshal
import os
import pkgutil
import sys
import types
import warnings
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from types import CodeType
from typing import Any

from netkit.errors import NetkitError

__all__ = ["run_module", "run_script"]

HEADER = 16
"""Bytes of a .pyc file before its code (PEP 552)."""


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Run a file, a folder or an archive with a `__main__.py`, or "-": what standard input has. Raises `NetkitError`
    where there is none; what the program raises leaves as it is."""
    sys.argv[:] = [script, *arguments]
    if script == "-":
        sys.path[0] = ""
        code = compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True)
        _execute(code, {"__file__": "<stdin>", "__cached__": None, "__loader__": BuiltinImporter})
        return
    if pkgutil.get_importer(os.path.abspath(script)) is not None:
        _run_container(script)
        return
    # Absolute, as Python shows it: programs change the working directory.
    file = os.path.join(os.getcwd(), script)
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    loader = SourcelessFileLoader if file.endswith(".pyc") else SourceFileLoader
    _execute(_compiled(file), {"__file__": file, "__cached__": None, "__loader__": loader("__main__", file)})


def run_module(module: str, arguments: Sequence[str]) -> None:
    """Run a module, or a package's `__main__`, by its name. Raises as `run_script` does."""
    sys.argv[:] = ["-m", *arguments]
    sys.path[0] = os.getcwd()
    code, spec = _module(module)
    sys.argv[0] = str(spec.origin)
    _execute(code, _told_by(spec))


def _run_container(path: str) -> None:
    sys.path[0] = os.path.abspath(path)
    spec = PathFinder.find_spec("__main__", [sys.path[0]])
    if spec is None:
        raise NetkitError(f"run: {path}: there is no __main__ in it")
    _execute(_code_of(spec), _told_by(spec))


def _compiled(file: str) -> CodeType:
    # Opened by its name, not where a link leads: a pipe (`<(…)`) has no name there.
    with io.open_code(file) as opened:
        text = opened.read()
    if text.startswith(importlib.util.MAGIC_NUMBER):
        code: CodeType = marshal.loads(text[HEADER:])
        return code
    return compile(text, file, "exec", dont_inherit=True)


def _module(name: str) -> tuple[CodeType, ModuleSpec]:
    package = name.rpartition(".")[0]
    if package:
        _import_package(package, name)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise NetkitError(f"run: no module named {name} ({error})") from error
    if spec is None:
        raise NetkitError(f"run: no module named {name}")
    if spec.submodule_search_locations is not None:
        return _module(f"{name}.__main__")
    return _code_of(spec), spec


def _import_package(package: str, name: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise  # of what the package itself imports
        raise NetkitError(f"run: no module named {name} ({error})") from error
    known = sys.modules.get(name)
    if known is not None and not hasattr(known, "__path__"):
        warnings.warn(
            f"{name!r} was imported by {package!r} already, and now runs once more", RuntimeWarning, stacklevel=2
        )


def _code_of(spec: ModuleSpec) -> CodeType:
    loader: Any = spec.loader
    code: CodeType | None = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise NetkitError(f"run: {spec.name} has no Python code")
    return code


def _told_by(spec: ModuleSpec) -> dict[str, Any]:
    return {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }


def _execute(code: CodeType, names: dict[str, Any]) -> None:
    main: Any = types.ModuleType("__main__")
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    main.__builtins__ = sys.modules["builtins"]
    vars(main).update(names)
    sys.modules["__main__"] = main
    exec(code, vars(main))
