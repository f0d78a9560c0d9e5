"""The optimal hit rate, against a trie that is really built."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.runtime.simulator.optimal import Optimum, Text, optimum

pytestmark = pytest.mark.tiny


def text(tokens: list[int], prompt: int | None = None, namespace: str = "") -> Text:
    return Text(np.array(tokens, np.int32), len(tokens) if prompt is None else prompt, namespace)


def by_trie(texts: list[Text]) -> Optimum:
    """Every prefix of every text is a node."""
    asked, made = set(), set()
    for tokens, prompt, namespace in texts:
        for end in range(1, len(tokens) + 1):
            (asked if end <= prompt else made).add((namespace, tuple(tokens[:end].tolist())))
    return Optimum(sum(one.prompt for one in texts), len(asked - made), len(asked | made))


@st.composite
def some_text(draw: st.DrawFn) -> Text:
    tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=7))
    return text(tokens, draw(st.integers(1, len(tokens))), draw(st.sampled_from(["", "", "x"])))


@given(st.lists(some_text(), max_size=14))
def test_it_is_what_a_trie_says(texts):
    assert optimum(texts) == by_trie(texts)


def test_few_shot_and_chat_have_their_closed_forms():
    shots = [text([*range(80), 1000 + i]) for i in range(10)]
    assert optimum(shots) == (810, 90, 90)
    assert optimum(shots).hit_rate == pytest.approx(9 * 80 / 810)
    # Turns of 3 asked and 2 answered tokens: of each later prompt only its own 3 are new.
    said = list(range(100))
    turns = [text(said[: 5 * turn + 5], 5 * turn + 3) for turn in range(4)]
    assert optimum(turns) == (3 + 8 + 13 + 18, 4 * 3, 20)


def test_nothing_asked():
    assert optimum([]) == (0, 0, 0)
    assert optimum([]).hit_rate == 0.0


def test_tokens_beyond_a_byte_are_told_apart():
    assert optimum([text([256, 1]), text([1, 256]), text([256, 2])]).distinct == 5
