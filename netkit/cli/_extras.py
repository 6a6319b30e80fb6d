"""What to install when a command's dependency is not there."""

from __future__ import annotations

from netkit.errors import NetkitError

__all__ = ["missing_extra"]


def missing_extra(command: str, error: ModuleNotFoundError, extra: str) -> NetkitError:
    """The error to raise for a failed import; netkit's own missing modules are in no extra."""
    if (error.name or "").partition(".")[0] in ("netkit", "netkit_plugins", "netkit_adapters"):
        return NetkitError(f"{command}: {error.name} is missing from this installation")
    return NetkitError(f"{command}: {error.name} is not installed; it needs: pip install 'netkit-http[{extra}]'")
