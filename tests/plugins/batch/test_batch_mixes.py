"""Whatever is mixed, whoever leaves and whatever the server does: no caller ever gets another's answer."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

from batch_rig import Rig, inputs_of, request
from hypothesis import given, settings
from hypothesis import strategies as st

import netkit
from netkit import Response, TransportError, Verdict
from netkit.errors import BatchError, FailureKind
from netkit.testing import MockGPU, expected_vector, faults

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)
tokens = st.lists(st.integers(0, 9), min_size=1, max_size=4)
inputs = st.one_of(
    text,
    tokens,
    st.lists(text, min_size=1, max_size=6),
    st.lists(tokens, min_size=1, max_size=6),
    st.just("POISON"),
    st.just(["fine", "POISON"]),
)
call = st.fixed_dictionaries(
    {
        "input": inputs,
        "key": st.sampled_from(["k1", "k2"]),
        "model": st.sampled_from(["m", "n"]),
        "start": st.integers(0, 3),
        "cancel_at": st.one_of(st.none(), st.none(), st.integers(0, 6)),
        "read": st.sampled_from([None, None, 0.3, 50.0]),
    }
)
behaviour = st.sampled_from(["right"] * 6 + ["short", "twice", "no index", "broken", "500", "reset"])


class Server:
    """Answers with proofs of input, credential and model, in an order of its own, or misbehaves as told."""

    def __init__(self, rig: Rig, script: list[str], seed: int) -> None:
        self._rig = rig
        self._script = script
        self._random = random.Random(seed)
        self.misbehaved = False

    async def send(self, sent: Any) -> Response:
        rig = self._rig
        rig.inside += 1
        try:
            await rig.runtime.sleep(self._random.choice([0.0, 0.001, 0.2, 1.0]))
            return self._answer(sent)
        finally:
            rig.inside -= 1

    def _answer(self, sent: Any) -> Response:
        given_inputs = inputs_of(sent.body.content)
        body = json.loads(sent.body.content)
        assert len(given_inputs) <= 8
        if "POISON" in given_inputs:
            return Response.of(422, [], json.dumps({"bad": given_inputs}).encode())
        how = self._script.pop(0) if self._script else "right"
        proof = [sent.headers["authorization"], body["model"]]
        data: list[Any] = [{"index": n, "embedding": [item, *proof]} for n, item in enumerate(given_inputs)]
        self._random.shuffle(data)
        if how == "right":
            return Response.of(200, [], json.dumps({"data": data, "usage": {"total_tokens": 3}}).encode())
        self.misbehaved = True
        if how == "reset":
            raise TransportError("reset", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS)
        if how == "500":
            return Response.of(500, [], b"{}")
        if len(given_inputs) == 1:
            # A caller alone gets what the server says: there is nobody to mix it up with.
            return Response.of(200, [], json.dumps({"data": data}).encode())
        if how == "short":
            data.pop()
        elif how == "twice":
            data[0] = data[1]
        elif how == "no index":
            del data[-1]["index"]
        return Response.of(200, [], b"{" if how == "broken" else json.dumps({"data": data}).encode())


def proofs(given_call: dict[str, Any]) -> list[Any]:
    own = given_call["input"]
    alone = isinstance(own, str) or isinstance(own[0], int)
    return [[item, f"Bearer {given_call['key']}", given_call["model"]] for item in ([own] if alone else own)]


def check(given_call: dict[str, Any], task: Any, server: Server) -> None:
    error: Any = None
    try:
        answer = task.result()
    except (TransportError, BatchError) as raised:
        error = raised
    if error is not None:
        timed_out = isinstance(error, TransportError) and error.kind is FailureKind.READ_TIMEOUT
        assert server.misbehaved or (timed_out and given_call["read"] == 0.3), repr(error)
        return
    own = given_call["input"]
    if answer.status == 422:
        assert own in ("POISON", ["fine", "POISON"])
        # Of a list that is split over batches, the refused part speaks for all.
        assert set(json.loads(answer.body.content)["bad"]) <= ({own} if isinstance(own, str) else set(own))
    elif answer.status == 500:
        assert server.misbehaved
    else:
        try:
            data = json.loads(answer.body.content)["data"]
        except ValueError:
            data = []
        # An answer that came for this caller alone is passed on as it is, right or wrong.
        if server.misbehaved and "batch" not in answer.extensions:
            assert all(part["embedding"] in proofs(given_call) for part in data)
            return
        data.sort(key=lambda part: part["index"])
        assert [part["embedding"] for part in data] == proofs(given_call)


@settings(max_examples=150, deadline=None)
@given(
    calls=st.lists(call, min_size=1, max_size=14),
    script=st.lists(behaviour, max_size=8),
    seed=st.integers(0, 999),
    options=st.fixed_dictionaries(
        {
            "max_items": st.sampled_from([1, 2, 3, 8]),
            "max_in_flight": st.sampled_from([1, 2, 4]),
            "max_wait": st.sampled_from([0.0, 0.005, 0.1]),
            "max_bytes": st.sampled_from([60, 2_000_000]),
        }
    ),
)
def test_no_caller_gets_anothers_answer(
    calls: list[dict[str, Any]], script: list[str], seed: int, options: dict[str, Any]
) -> None:
    from netkit.messages import Timeout

    rig = Rig(**options)
    server = Server(rig, list(script), seed)
    tasks: list[Any] = [None] * len(calls)
    for moment in range(4):
        for number, each in enumerate(calls):
            if each["start"] == moment:
                made = request(each["input"], timeout=Timeout(read=each["read"]), model=each["model"])
                made = made.replace(headers=made.headers.set("Authorization", f"Bearer {each['key']}"))
                tasks[number] = rig.runtime.task(
                    rig.layer(made, server.send), name=str(number), cancel_at=each["cancel_at"]
                )
        rig.runtime.advance(0.002)
    rig.runtime.run_to_end()
    for each, task in zip(calls, tasks, strict=True):
        if not task.cancelled:
            check(each, task, server)
    stats = rig.layer.stats()
    assert (rig.inside, stats.in_flight, stats.waiting) == (0, 0, 0)


def test_threads_get_their_own_under_faults() -> None:
    """48 threads with two keys, all shapes and a server that shuffles, refuses, fails and breaks off."""
    chance = random.Random()
    texts = [f"text {number}" for number in range(40)]

    def shape() -> Any:
        return chance.choice(
            [
                chance.choice(texts),
                [chance.choice(texts) for _ in range(chance.randint(1, 5))],
                [chance.randint(0, 99) for _ in range(3)],
                [[chance.randint(0, 99)] for _ in range(chance.randint(1, 4))],
                ["fine", "POISON"],
            ]
        )

    wrong: list[Any] = []
    with MockGPU(
        tls=False, http="1.1", launch_ms=0.5, per_item_ms=0.05, data_order="shuffled", poison="POISON"
    ) as gpu:
        gpu.faults.push(faults.Data(nth=5, drop=(0,)), faults.Status(503, nth=11), faults.ResetBeforeHeaders(nth=17))
        with netkit.Session(plugins={"batch": {"max_items": 8}, "retry": False}) as session:

            def work(number: int) -> None:
                for _ in range(8):
                    own = shape()
                    alone = isinstance(own, str) or isinstance(own[0], int)
                    try:
                        answer = session.post(
                            f"{gpu.url}/v1/embeddings",
                            json={"model": "m", "input": own, "dimensions": 4 + number % 2},
                            headers={"Authorization": f"Bearer {number % 2}"},
                            timeout=20,
                        )
                    except netkit.requests.RequestException:
                        continue
                    if answer.status_code == 200:
                        data = sorted(answer.json()["data"], key=lambda part: part["index"])
                        vectors = [part["embedding"] for part in data]
                        items = [own] if alone else own
                        proof = [expected_vector(item, dimensions=4 + number % 2) for item in items]
                        # Only a call that went by itself can have met the answer that is one short.
                        if vectors != proof and len(vectors) == len(proof):
                            wrong.append((own, vectors))
                    elif answer.status_code == 422 and "POISON" not in own:
                        wrong.append((own, answer.text))

            threads = [threading.Thread(target=work, args=(number,)) for number in range(48)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            stats = netkit.stats(session)
    assert wrong == []
    assert (stats.requests.in_flight, stats.batch.in_flight, stats.batch.waiting) == (0, 0, 0)
    assert stats.batch.batches == len(gpu.log.requests)
