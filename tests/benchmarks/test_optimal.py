"""The best hit rate of any cache, against a trie that is built node by node."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palmette.runtime.simulator.optimal import Optimum, Text, optimum


def text(tokens, prompt, namespace=""):
    return Text(np.array(tokens, np.int32), prompt, namespace)


def by_nodes(texts):
    """The definition: every node of the trie by its whole way down."""
    asked, answered = set(), set()
    for tokens, prompt, namespace in texts:
        for depth in range(1, len(tokens) + 1):
            (asked if depth <= prompt else answered).add((namespace, *tokens[:depth].tolist()))
    return Optimum(sum(each.prompt for each in texts), len(asked - answered), len(asked | answered))


# Few different tokens, so that texts share much and end inside each other.
lists_of_texts = st.lists(
    st.lists(st.integers(0, 2), max_size=9).flatmap(
        lambda tokens: st.integers(0, len(tokens)).map(lambda prompt: text(tokens, prompt))
    ),
    max_size=12,
)


@given(lists_of_texts)
@example([text([1, 1, 1], 3), text([1, 1], 1), text([1, 1, 1, 2], 0)])
def test_agrees_with_the_definition(texts):
    assert optimum(texts) == by_nodes(texts)


def test_token_ids_of_several_bytes_are_in_order():
    many = [text([1, 256, 70000, 255], 4), text([1, 256, 70000, 3], 2), text([1, 255], 1), text([257], 1)]
    assert optimum(many) == by_nodes(many)


def test_the_example_of_the_documentation():
    a, b, c, x, y, d, e = range(7)
    found = optimum([text([a, b, c, x, y], 3), text([a, b, c, x, y, d], 6), text([a, b, e], 3)])
    assert found == Optimum(prompt=12, required=5, distinct=7)
    assert found.hit_rate == pytest.approx(7 / 12)


# The closed forms of WORKLOADS.md.


def test_shots_that_all_questions_share():
    shots, own, items = 50, 7, 20
    found = optimum([text([*range(shots), *range(1000 * i, 1000 * i + own)], shots + own) for i in range(1, items + 1)])
    assert found.hit_rate == pytest.approx((items - 1) * shots / (items * (shots + own)))


def test_a_conversation_of_equal_turns():
    turns, question, answer = 5, 8, 4
    growth = question + answer
    talk = list(range(turns * growth))
    # Turn t asks with all before it; without the answers' part this is the (T - 1) / (T + 1) of equal turns.
    found = optimum([text(talk[: t * growth], t * growth - answer) for t in range(1, turns + 1)])
    assert found.required == turns * question
    assert found.prompt == sum(t * growth - answer for t in range(1, turns + 1))


def test_namespaces_share_nothing():
    found = optimum([text([1, 2, 3, 4], 3, namespace) for namespace in ("a", "a", "b")])
    assert found == Optimum(prompt=9, required=6, distinct=8)


def test_nothing_at_all():
    assert optimum([]) == Optimum(0, 0, 0)
    assert optimum([]).hit_rate == 0.0


def test_a_million_tokens_take_seconds_at_most():
    random = Random(0)
    shared = [[70_000 + i, *(random.randrange(50_000) for _ in range(1499))] for i in range(20)]
    many = [
        text([*shared[i % 20], 60_000 + i, *(random.randrange(50_000) for _ in range(499))], 1900) for i in range(500)
    ]
    # A trie of 500 texts: what they share twenty times, and 500 tokens each.
    found = optimum(many)
    assert found == Optimum(500 * 1900, 20 * 1500 + 500 * 400, 20 * 1500 + 500 * 500)
