"""What the plugin does, and that it breaks nothing on any stack."""

from __future__ import annotations

import re

import pytest

import netkit
from netkit.testing import MockGPU, conformance


@pytest.mark.parametrize("case", conformance.cases("acme_trace"), ids=str)
def test_conformance(case):
    case.run()


def test_adds_a_trace_and_keeps_a_callers_own():
    with MockGPU(tls=False) as gpu, netkit.Session(plugins={"trace": {"sampled": False}}) as session:
        session.get(gpu.url + "/echo")
        session.get(gpu.url + "/echo", headers={"traceparent": "mine"})
    made, kept = (request.header("traceparent") for request in gpu.log.requests)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", made)
    assert kept == "mine"
