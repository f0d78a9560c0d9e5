"""Traces: as files, and made up."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest

from palmette.errors import ArgumentError
from palmette.runtime.simulator import WORKLOADS, Arrival, Range, chat, read_trace, shared_prefix, write_trace

pytestmark = pytest.mark.tiny


def plain(arrival):
    names = ("time", "output", "tenant", "priority", "namespace", "family", "max_tokens", "after")
    reply = None if arrival.reply is None else arrival.reply.tolist()
    return [getattr(arrival, name) for name in names], arrival.prompt.tolist(), reply


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_file_gives_back_what_was_written(workload, tmp_path):
    trace = WORKLOADS[workload](20, rate=3.0, tenants=3, max_tokens=500)
    trace.append(Arrival(1.5, np.array([3, 4]), 0, priority=-2, namespace="n", family="f", reply=np.array([], int)))
    write_trace(tmp_path / "t.jsonl", trace)
    assert list(map(plain, read_trace(tmp_path / "t.jsonl"))) == list(map(plain, trace))
    line = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])
    assert "priority" not in line and line["tenant"] == "tenant 0"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON"),
        ("[1]", "a JSON object"),
        ('{"time": 0, "prompt": [1]}', "lacks output"),
        ('{"time": 0, "prompt": [1], "output": 1, "tennant": "a"}', "did you mean 'tenant'"),
        ('{"time": "soon", "prompt": [1], "output": 1}', "time cannot be 'soon'"),
        ('{"time": 0, "prompt": [1], "output": true}', "output cannot be True"),
        ('{"time": 0, "prompt": [], "output": 1}', "a prompt that is empty"),
        ('{"time": 0, "prompt": [1, -1], "output": 1}', "ids below 0"),
        ('{"time": 0, "prompt": [1, 4294967296], "output": 1}', "32 bits"),
        ('{"time": 0, "prompt": [1, "a"], "output": 1}', "integers"),
        ('{"time": 0, "prompt": ["a"], "output": 1}', "a list of integers, and 'a' is none"),
        ('{"time": 0, "prompt": [[1]], "output": 1}', "flat"),
        ('{"time": -1, "prompt": [1], "output": 1}', "the time -1"),
        ('{"time": 0, "prompt": [1], "output": 9, "max_tokens": 3}', "makes 9 tokens and asks for 3"),
        ('{"time": 0, "prompt": [1], "output": 2, "reply": [5]}', "a reply of 1"),
    ],
)
def test_what_is_no_arrival_is_said_with_its_line(line, words, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"time": 0, "prompt": [1], "output": 1}\n\n' + line + "\n")
    with pytest.raises(ArgumentError) as error:
        read_trace(path)
    assert words in str(error.value) and f"{path}:3" in error.value.message


def test_an_arrival_follows_an_earlier_one(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"time": 0, "prompt": [1], "output": 1, "after": 0}\n')
    with pytest.raises(ArgumentError, match="after number 0"):
        read_trace(path)
    with pytest.raises(ArgumentError, match="cannot read"):
        read_trace(tmp_path / "nothing.jsonl")


def test_groups_share_prefixes_and_some_are_asked_oftener():
    even = shared_prefix(400, rate=10.0, groups=4, prefix=Range(30, 30), suffix=Range(5, 9), seed=1)
    heads = Counter(arrival.prompt[:30].tobytes() for arrival in even)
    assert len(heads) == 4 and min(heads.values()) > 60
    assert {len(arrival.prompt) - 30 for arrival in even} == {5, 6, 7, 8, 9}
    skewed = shared_prefix(400, rate=10.0, groups=4, prefix=Range(30, 30), suffix=Range(5, 9), zipf=2.0, seed=1)
    heads = Counter(arrival.prompt[:30].tobytes() for arrival in skewed)
    assert max(heads.values()) > 250


def test_arrivals_are_poisson_and_repeatable():
    trace = shared_prefix(4000, rate=50.0, prefix=Range(1, 1), suffix=Range(1, 1), seed=3)
    gaps = np.diff([arrival.time for arrival in trace])
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05) and gaps.std() == pytest.approx(gaps.mean(), rel=0.1)
    again = shared_prefix(4000, rate=50.0, prefix=Range(1, 1), suffix=Range(1, 1), seed=3)
    assert list(map(plain, trace)) == list(map(plain, again))
    assert {arrival.time for arrival in shared_prefix(5, rate=math.inf)} == {0.0}
    with pytest.raises(ArgumentError, match="lets nothing arrive"):
        shared_prefix(5, rate=0.0)


def test_a_turn_of_a_chat_goes_on_from_all_that_was_said():
    trace = chat(10, rate=1.0, turns=4, tenants=2, seed=2)
    assert [arrival.after for arrival in trace] == [None, 0, 1, 2, None, 4, 5, 6, None, 8]
    for arrival in trace:
        if arrival.after is not None:
            before = trace[arrival.after]
            said = [*before.prompt.tolist(), *before.reply.tolist()]
            assert arrival.prompt.tolist()[: len(said)] == said and len(arrival.prompt) > len(said)
            assert arrival.tenant == before.tenant
    assert np.array_equal(trace[0].prompt[:500], trace[4].prompt[:500])
