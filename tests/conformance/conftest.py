"""The example of a third-party plugin is importable, as if it were installed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "third_party_plugin" / "src"))
