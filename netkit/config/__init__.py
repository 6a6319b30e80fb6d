"""Configuration with provenance: files, routes, environment and arguments, layered, checked and explained.

Rules of this package:

- Each setting keeps the name of the file, variable or argument that it came from; every error tells it.
- Nothing here imports a plugin before all names were checked, and none that is not used.
"""

from __future__ import annotations

from netkit.config._config import Config, Plan, Step
from netkit.config._convert import describe
from netkit.config._explain import Setting, standing
from netkit.config._levels import PluginSettings
from netkit.config._options import MISSING, Option, options_of
from netkit.config._redact import redact
from netkit.config._routes import Route

__all__ = [
    "MISSING",
    "Config",
    "Option",
    "Plan",
    "PluginSettings",
    "Route",
    "Setting",
    "Step",
    "describe",
    "options_of",
    "redact",
    "standing",
]
