"""Builds docs/_build/html, with tables as the code has them; a warning is an error: `python -m docs.build`."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from docs import reference

HERE = Path(__file__).parent


def main() -> int:
    reference.main([])
    return build_main(["-W", "--keep-going", "-q", "-b", "html", str(HERE), str(HERE / "_build" / "html")])


if __name__ == "__main__":
    sys.exit(main())
