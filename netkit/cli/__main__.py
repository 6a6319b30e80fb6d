"""`python -m netkit.cli`."""

from __future__ import annotations

import sys

from netkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
