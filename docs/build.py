"""Builds docs/_build/html, with tables as the code has them; a warning is an error: `python -m docs.build`.

`python -m docs.build DIRECTORY` builds the pages there, as they stand.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sphinx.cmd.build import build_main

from docs import reference

HERE = Path(__file__).parent


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        reference.main([])
    target = arguments[0] if arguments else str(HERE / "_build" / "html")
    return build_main(["-W", "--keep-going", "-q", "-b", "html", str(HERE), target])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
