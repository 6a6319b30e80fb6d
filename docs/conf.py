"""Sphinx settings of the documentation."""

from __future__ import annotations

from importlib.metadata import version as installed

project = "netkit"
copyright = "the netkit authors"
release = installed("netkit-http")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx"]
html_theme = "furo"
html_title = f"netkit {release}"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Pages are read in the repository too: links to its files stay plain.
suppress_warnings = ["myst.xref_missing"]
exclude_patterns = ["_build", "*.py"]
intersphinx_mapping: dict[str, tuple[str, None]] = {}
