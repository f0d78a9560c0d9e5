"""Tokens found by what they begin with, and texts that may begin a constrained one, against looking at each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.runtime.constraints.beginnings import legal_beginnings
from palmette.runtime.constraints.compile import ConstraintCompiler
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint

pytestmark = pytest.mark.tiny

words = st.binary(min_size=1, max_size=4).map(lambda raw: bytes(b"abc"[x % 3] for x in raw))


def vocabulary_of(pieces: list[bytes]) -> Vocabulary:
    return Vocabulary([*pieces, None], width=len(pieces) + 3, end_ids=frozenset({len(pieces)}))


@settings(deadline=None)
@given(st.lists(words, max_size=15), words)
def test_tokens_are_found_by_their_beginning(pieces: list[bytes], text: bytes) -> None:
    vocabulary = vocabulary_of(pieces)
    longer = [token for token, piece in enumerate(pieces) if piece.startswith(text)]
    assert vocabulary.beginning(text).tolist() == longer
    assert vocabulary.extends(text) == any(pieces[token] != text for token in longer)
    agreeing = [token for token, piece in enumerate(pieces) if piece.startswith(text) or text.startswith(piece)]
    assert vocabulary.agreeing(text) == agreeing


def test_a_text_is_spelled_by_the_tokenizer_where_it_does_so() -> None:
    pieces: list[bytes | None] = [b"a", b"b", b"ab", None]
    spelled = {b"ab": [0, 1], b"b": []}
    vocabulary = Vocabulary(pieces, width=4, end_ids=frozenset({3}), encode=lambda text: spelled[text])
    assert vocabulary.spell(b"ab") == [0, 1]
    assert vocabulary.spell(b"b") == [1]
    assert vocabulary_of([b"a", b"ab"]).spell(b"aba") == [1, 0]
    assert vocabulary_of([b"a", b"ab"]).spell(b"b") is None


CONSTRAINTS = [
    Constraint("regex", "[ab]{2,5}c?"),
    Constraint("regex", "abc|abba|c+"),
    Constraint("choices", ("abc", "ab", "cab")),
    Constraint("grammar", 'start: "ab" start? "c" | "c"'),
    Constraint("json_schema", '{"const": "abcabc"}'),
]


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(CONSTRAINTS), st.lists(words, max_size=10), st.sets(words, max_size=12), st.integers(0, 3))
def test_legal_beginnings_are_those_that_can_be_taken_byte_by_byte(
    constraint: Constraint, pieces: list[bytes], texts: set[bytes], begun: int
) -> None:
    """Of a text that has begun, too; and the matcher goes on as if it had not been asked."""
    letters = [bytes([byte]) for byte in b'abc"']
    vocabulary = vocabulary_of([*letters, *pieces])
    matcher = ConstraintCompiler(vocabulary).compile(constraint).start()
    for token in range(begun):
        matcher.advance(token % 4)
    before, after = np.zeros(vocabulary.words, np.int32), np.zeros(vocabulary.words, np.int32)
    matcher.fill(before)
    legal = legal_beginnings(matcher, vocabulary, texts)
    matcher.fill(after)
    assert (before == after).all()
    for text in texts:
        trial = matcher.fork()
        assert (text in legal) == all(trial.advance(letters.index(bytes([byte]))) for byte in text), text


def test_a_text_that_no_tokens_spell_is_no_beginning() -> None:
    vocabulary = vocabulary_of([b"a", b"xb"])
    matcher = ConstraintCompiler(vocabulary).compile(Constraint("regex", "[a-z]+")).start()
    assert legal_beginnings(matcher, vocabulary, {b"ab", b"aa", b"a", b"axb", b"b", b"A"}) == {b"aa", b"a", b"axb"}
