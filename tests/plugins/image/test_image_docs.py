"""docs/image.md: its tables are valid, what it shows as default is the default, its place in the order holds."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

from netkit_plugins.image import ImageOptions, PictureOptions
from netkit_plugins.image.places import PRESETS

import netkit
from netkit.config import Config
from netkit.plugins import DEFAULT_LAYERS, Registry

TEXT = (Path(__file__).parents[3] / "docs" / "image.md").read_text(encoding="utf-8")
_WRITTEN = re.sub(r"<!-- options: .*?<!-- end -->", "", TEXT, flags=re.DOTALL)
"""Without the generated table of options."""


def tables() -> list[dict[str, Any]]:
    blocks = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return [tomllib.loads(block)["tool"]["netkit"]["image"] for block in blocks]


def test_the_tables_are_valid() -> None:
    known = Registry(use_entry_points=False)
    assert len(tables()) == 2
    for table in tables():
        Config.from_mapping({"image": table}, "docs").check(known)


def test_what_is_shown_is_the_default() -> None:
    shown = ImageOptions(**tables()[0])
    assert shown.box == ImageOptions().box
    assert {name: getattr(shown, name) for name in tables()[0] if name != "max_size"} == {
        name: getattr(ImageOptions(), name) for name in tables()[0] if name != "max_size"
    }


def test_every_preset_has_its_row() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", _WRITTEN, re.MULTILINE)) == set(PRESETS)


def test_every_option_is_documented_where_it_is_declared() -> None:
    for options in (PictureOptions, ImageOptions):
        documented = set(re.findall(r"^(\w+):", inspect.cleandoc(options.__doc__ or ""), re.MULTILINE))
        assert documented == set(options.__annotations__)


def test_it_stands_outside_batch_and_inside_cache() -> None:
    order = DEFAULT_LAYERS
    assert order.index("coalesce") < order.index("image") < order.index("batch")


def test_importing_netkit_imports_no_pillow() -> None:
    import subprocess
    import sys

    code = (
        "import sys, netkit; assert not any(name.split('.')[0] == 'PIL' for name in sys.modules); "
        "print(netkit.preprocess)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "preprocess" in netkit.__all__
