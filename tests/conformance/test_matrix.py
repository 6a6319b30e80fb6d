"""Every built-in plugin × every stack; "bare" is the adapter without any plugin."""

from __future__ import annotations

import pytest

from netkit.testing import conformance

SUBJECTS = [conformance.Subject(None)]


@pytest.mark.parametrize("case", conformance.cases(SUBJECTS), ids=str)
def test_conformance(case: conformance.Case) -> None:
    case.run()
