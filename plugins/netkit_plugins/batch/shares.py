"""Sharing out `usage`: `netkit.shares`."""

from __future__ import annotations

from netkit.shares import share, total

__all__ = ["share", "total"]
