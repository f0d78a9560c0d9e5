"""Each workload makes the requests that its shape wants. On a mock: no model says anything here."""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import aclosing
from itertools import pairwise

import pytest

import palmette as pt
from palmette.benchmarks.ablations import ABLATIONS, FULL
from palmette.benchmarks.measure import measure
from palmette.benchmarks.recording import Recorder, arrivals, digest, texts
from palmette.benchmarks.subject import load
from palmette.benchmarks.synthetic import Writer
from palmette.benchmarks.workload import Manner, Options, Setup
from palmette.benchmarks.workloads import WORKLOADS, named
from palmette.errors import ArgumentError
from palmette.runtime.simulator.trace import read_trace, write_trace

# Requests of one program, and the most that are in progress at once.
REQUESTS = {"W1": 1, "W5": 39, "W6": 10, "W7": 7, "W8": 5, "W8b": 1, "W9": 4, "W11": 1, "W12": 6, "W14": 1, "W15": 1}
ABREAST = {name: 1 for name in WORKLOADS} | {"W5": 27, "W6": 5, "W7": 6, "W12": 5}


class Crowd(pt.testing.MockBackend):
    """Remembers how many requests were in progress at once."""

    most = 0

    async def submit(self, request):
        self.most = max(self.most, self.active + 1)
        async with aclosing(super().submit(request)) as events:
            async for event in events:
                yield event


@pytest.fixture
def backend():
    return Crowd(default="tap water is fine " * 40, delay=0.001)


def setup(backend, *, items=3, scale=0.1, seed=0, **options):
    return Setup(items, scale, seed, Writer(backend.codec), options=Options(**options))


def run(workload, backend, rounds, *, sequential=False):
    """All programs, one after the other."""
    manner = {}
    if workload.forks or workload.constrained:
        # A mock's words fit no regex: what is asked for, in which order, is the same without.
        manner["manner"] = Manner(backend, sequential, free=True, lengths=defaultdict(lambda: 9))
    for items in rounds:
        for item in items:
            workload.program.run(**item, **manner, backend=backend, temperature=0, seed=1)


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_of_a_program(name, backend):
    workload = WORKLOADS[name]
    rounds = workload.rounds(setup(backend))
    assert [len(items) for items in rounds] == [3]
    recorder = Recorder(backend)
    run(workload, recorder, rounds)
    made = sum(len(item["steps"]) + 1 for items in rounds for item in items) if name == "W3" else 3 * REQUESTS[name]
    assert len(backend.requests) == len(recorder.records) == made
    assert backend.most == ABREAST[name]
    # The model has no say in how long its texts are.
    assert all(request.params.ignore_eos and not request.params.stop for request in backend.requests)
    assert all(request.params.max_tokens < 100 for request in backend.requests)


@pytest.mark.parametrize("name", [name for name, workload in WORKLOADS.items() if workload.forks])
def test_sequential_forks_ask_the_same_one_by_one(name, backend):
    workload = WORKLOADS[name]
    rounds = workload.rounds(setup(backend, items=2))
    abreast, one_by_one = Recorder(backend), Recorder(backend)
    run(workload, abreast, rounds)
    backend.most = 0
    run(workload, one_by_one, rounds, sequential=True)
    assert backend.most == 1
    assert digest(abreast.records) == digest(one_by_one.records)


@pytest.mark.parametrize("name", WORKLOADS)
def test_arguments_are_a_matter_of_the_seed_and_more_items_leave_the_first_as_they_are(name, backend):
    workload = WORKLOADS[name]
    one = workload.rounds(setup(backend, seed=4))
    assert one == workload.rounds(setup(backend, seed=4))
    if name not in ("W6", "W15"):  # W6 has no text of ours; W15 shuffles
        assert one != workload.rounds(setup(backend, seed=5))
        assert workload.rounds(setup(backend, seed=4, items=5))[0][:3] == one[0]


def test_scale_is_of_lengths(backend):
    def longest(scale):
        backend.requests.clear()
        run(WORKLOADS["W15"], backend, WORKLOADS["W15"].rounds(setup(backend, items=2, scale=scale)))
        return max(len(request.tokens) for request in backend.requests), backend.requests[0].params.max_tokens

    small, large = longest(0.05), longest(0.2)
    assert 3.5 < large[0] / small[0] < 4.5
    assert (small[1], large[1]) == (13, 51)


def test_examples_stand_before_questions(backend):
    rounds = WORKLOADS["W1"].rounds(setup(backend, items=16, scale=1))
    shots = {item["shots"] for item in rounds[0]}
    assert len(shots) == 2
    assert all(text.count("\nAnswer: ") == 5 and text.startswith("The following are") for text in shots)
    assert all(re.search(r"\nD\. .*$", item["question"]) for item in rounds[0])
    # Cut to fewer examples where they do not fit, never to none.
    small = WORKLOADS["W1"].rounds(setup(backend, items=16, scale=0.001))
    assert all(item["shots"].count("\nAnswer: ") == 1 for item in small[0])


def test_conversations_grow_by_what_was_said(backend):
    run(WORKLOADS["W9"], backend, WORKLOADS["W9"].rounds(setup(backend, items=1)))
    prompts = [request.tokens for request in backend.requests]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
        assert len(after) > len(before) + 4
    assert all(4 <= request.params.max_tokens <= 8 for request in backend.requests)
    backend.requests.clear()
    run(WORKLOADS["W9"], backend, WORKLOADS["W9"].rounds(setup(backend, items=1, long=True)))
    assert all(26 <= request.params.max_tokens <= 51 for request in backend.requests)


def test_modes_of_prefixes_in_a_batch(backend):
    workload = WORKLOADS["W14"]
    assert [len(batch) for batch in workload.rounds(setup(backend, items=25))] == [25]
    batches = workload.rounds(setup(backend, items=25, mode="batches"))
    assert [len(batch) for batch in batches] == [9, 8, 8]
    assert all(len({item["prefix"] for item in batch}) == 1 for batch in batches)
    warm = workload.rounds(setup(backend, items=25, mode="warm-up"))
    assert warm[1::2] == batches
    assert [[item["suffix"] for item in batch] for batch in warm[::2]] == [[""]] * 3


def test_some_groups_are_more_popular_than_others(backend):
    def counts(**options):
        items = WORKLOADS["W15"].rounds(setup(backend, items=160, scale=0.01, **options))[0]
        systems = [item["system"] for item in items]
        return sorted((systems.count(system) for system in set(systems)), reverse=True)

    assert counts() == [16] * 10
    popular = counts(zipf=True)
    assert sum(popular) == 160
    assert popular[0] > 3 * popular[-1]


@pytest.mark.parametrize("name", [name for name, workload in WORKLOADS.items() if workload.constrained])
def test_free_texts_are_as_long_as_the_constrained(name):
    subject = load("tiny")
    workload, lengths = WORKLOADS[name], {}
    rounds = workload.rounds(Setup(2, 0.01, 0, Writer(subject.tokenizer)))
    variants = (FULL, ABLATIONS["free"])
    bound, free = (
        measure(workload, rounds, subject, variant, settings={"kv_tokens": 9000}, lengths=lengths).result
        for variant in variants
    )
    assert bound.generated_tokens == free.generated_tokens > 0
    assert bound.requests == free.requests
    assert bound.forced_tokens > 0 == free.forced_tokens


def test_names():
    assert [workload.name for workload in named(["w5", "W1", "W5"])] == ["W5", "W1"]
    assert named(["w8B"])[0].name == "W8b"
    assert named(["all"]) == list(WORKLOADS.values())
    with pytest.raises(ArgumentError, match="'W2'"):
        named(["W2"])


# -- recording ---------------------------------------------------------------------------------------------------------


@pt.function
def asking(s, topic):
    s += f"On {topic}: " + pt.gen("text", max_tokens=3)
    s += pt.select("verdict", ["good", "bad"])


def test_a_recorder_keeps_requests_and_their_answers():
    recorder = Recorder(pt.testing.MockBackend({"text": "well well well"}))
    asking.run(topic="tea", backend=recorder)
    generated, chosen = recorder.records
    assert recorder.codec.decode(generated.output) == "well well"
    assert recorder.codec.decode(chosen.output) == "good"
    assert chosen.prompt == generated.prompt + generated.output
    assert [(text.tokens.tolist(), text.prompt) for text in texts(recorder.records)] == [
        ([*record.prompt, *record.output], len(record.prompt)) for record in recorder.records
    ]


def test_records_are_a_trace_that_the_simulator_reads(tmp_path):
    recorder = Recorder(pt.testing.MockBackend({"text": "well well well"}))
    asking.run(topic="tea", backend=recorder)
    path = tmp_path / "trace.jsonl"
    write_trace(path, arrivals(recorder.records[::-1]))
    first, second = read_trace(path)
    assert 0 <= first.time <= second.time
    for arrival, record in zip((first, second), recorder.records, strict=True):
        assert tuple(arrival.prompt) == record.prompt
        assert tuple(arrival.reply) == record.output
        assert arrival.output == len(record.output)


def test_digests_tell_answers_and_not_their_order():
    def records(topics, text):
        recorder = Recorder(pt.testing.MockBackend({"text": text}))
        asking.run_batch([{"topic": topic} for topic in topics], backend=recorder)
        return recorder.records

    # One codec numbers words as they come, so the first run of each pair is the same in both.
    first = records(["tea", "tea"], "well well")
    assert digest(first) == digest(first[::-1]) == digest(records(["tea", "tea"], "well well"))
    assert digest(first) != digest(first[:-1])
    assert digest(first) != digest([*first[:-1], first[-1]._replace(output=(1, 2, 3))])


def test_a_failed_request_is_no_record():
    recorder = Recorder(pt.testing.MockBackend({"text": RuntimeError("no")}))
    (state,) = asking.run_batch([{"topic": "tea"}], backend=recorder, on_error="keep")
    assert str(state.error) == "no"
    assert recorder.records == []
