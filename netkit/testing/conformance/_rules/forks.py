"""A forked child starts afresh, and the parent's connections are untouched."""

from __future__ import annotations

import os

from netkit.testing.conformance._bench import Bench
from netkit.testing.conformance._rule import rule
from netkit.testing.mock_gpu import Answer, Exchange

__all__ = ["RULES"]


def _own(exchange: Exchange) -> Answer:
    return Answer.json({"name": exchange.content.decode(), "connection": exchange.connection.id})


@rule()
async def a_forked_child_works(bench: Bench) -> None:
    """Parent and child each get their own answers, on connections of their own, and the parent goes on with its."""
    if not hasattr(os, "fork"):
        return
    subject = bench.subject
    job = {
        "face": bench.face.name,
        "plugin": subject.name,
        "module": subject.module,
        "options": dict(subject.options),
        "http": bench.http,
        "url": bench.route(_own),
        "verify": bench.gpu.ca_file,
    }
    said = bench.servers.fork_probe(job)
    assert "error" not in said, said["error"]
    said = said["result"]
    assert "error" not in said["child"], f"the child failed: {said['child']['error']}"
    before, after, child = said["before"], said["after"], said["child"]["result"]
    assert [before["name"], after["name"]] == ["parent-before", "parent-after"]
    assert [one["name"] for one in child] == ["child-0", "child-1"]
    assert after["connection"] == before["connection"], "the parent lost its connection to the fork"
    assert before["connection"] not in [one["connection"] for one in child], "the child used the parent's connection"


RULES = (a_forked_child_works,)
