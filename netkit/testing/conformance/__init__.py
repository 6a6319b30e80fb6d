"""The conformance kit: what a plugin must not break, proven on every stack that is installed.

Example::

    pytest --netkit-plugin acme.netkit_tenant            # as a command

    @pytest.mark.parametrize("case", conformance.cases("acme.netkit_tenant"), ids=str)
    def test_conformance(case):                          # or in a test suite
        case.run()

Rules of this package:

- A rule is one function, written once: what the stack's own class does is what netkit's must do with the plugin on.
- A rule asserts on what the server saw as well as on what the caller got, and waits on events, never on clocks.
- Each failure names the rule that broke; the subject "bare" (no plugin) tells an adapter's fault from a plugin's.
"""

from __future__ import annotations

from netkit.testing.conformance._cases import FACES, Case, cases, check, is_installed
from netkit.testing.conformance._rule import LayerRule, Rule
from netkit.testing.conformance._servers import Servers
from netkit.testing.conformance._session import Face
from netkit.testing.conformance._subject import Subject

__all__ = ["FACES", "Case", "Face", "LayerRule", "Rule", "Servers", "Subject", "cases", "check", "is_installed"]
