"""`netkit mock-gpu`: the mock GPU server in the foreground."""

from __future__ import annotations

from netkit.cli._extras import missing_extra
from netkit.errors import ConfigError, NetkitError

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Serve until SIGINT or SIGTERM, with the flags of `python -m netkit.testing.mock_gpu`."""
    try:
        from netkit.testing.mock_gpu.command import main

        main(arguments, prog="netkit mock-gpu")
    except ModuleNotFoundError as error:
        raise missing_extra("mock-gpu", error, "testing") from error
    except ValueError as error:
        raise ConfigError(f"mock-gpu: {error}") from error
    except OSError as error:
        raise NetkitError(f"mock-gpu: cannot listen: {error}") from error
    return 0
