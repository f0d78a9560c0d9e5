"""Where a constrained text may end: against asking of each beginning anew, and how much is asked for it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from palmette.runtime.constraints import ConstraintCompiler, Vocabulary
from palmette.runtime.constraints.endings import Endings
from palmette.runtime.constraints.llg import LlgMatcher
from palmette.runtime.protocol import Constraint

PIECES = [*(bytes([b]) for b in range(256)), b"ab", b"abc", b'{"', b'":', b'"}', b"12", b"the", "\u6c34".encode()]
SCHEMA = json.dumps({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"enum": ["the", "\u6c34"]}]}})
CONSTRAINTS = {
    "choices": Constraint("choices", ("abc", "abcab", "the", "")),
    "regex": Constraint("regex", r"(?:ab|abc|\u6c34|12+)*"),
    "json_schema": Constraint("json_schema", SCHEMA),
    "grammar": Constraint("grammar", 'start: ("the" | "ab" "c"?)+\n'),
}


def vocabulary_of(pieces: list[bytes]) -> Vocabulary:
    return Vocabulary([*pieces, None], width=len(pieces) + 1, end_ids=frozenset({len(pieces)}))


def random_pieces(compiled: Any, pieces: list[bytes], chance: random.Random) -> list[bytes]:
    """What tokens spell that the constraint takes."""
    matcher, found = compiled.start(), []
    for _ in range(12):
        options = [token for token in range(len(pieces)) if matcher.fork().advance(token)]
        if not options:
            break
        # The long ones are few.
        token = max(chance.choices(options, k=2), key=lambda t: len(pieces[t]))
        matcher.advance(token)
        found.append(pieces[token])
    return found


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_each_place_is_an_end_where_the_text_before_it_is_accepted(name: str) -> None:
    vocabulary = vocabulary_of(PIECES)
    compiled = ConstraintCompiler(vocabulary).compile(CONSTRAINTS[name])
    chance = random.Random(name)
    ends = 0
    for _ in range(12):
        endings, pieces = compiled.endings(), random_pieces(compiled, PIECES, chance)
        text, asked = b"", []
        for piece in pieces:
            endings.add(piece)
            text += piece
            asked += chance.sample(range(len(text) + 1), min(3, len(text) + 1))
            ends += endings.at(asked[-1])
        for place in [*asked, *range(len(text) + 1)]:
            assert endings.at(place) is compiled.accepts(text[:place]), (text, place)
    assert ends


def test_a_vocabulary_without_bytes_is_followed_as_its_tokens_go() -> None:
    # Behind "x": "ab" is a token, "a" is none; "aba" has one way only, by "aba"; "abac" goes by "ab", "ac".
    pieces = [b"x", b"ab", b"aba", b"ac", b"c", b"abacab"]
    compiled = ConstraintCompiler(vocabulary_of(pieces)).compile(Constraint("regex", "x(?:[abc]*)"))
    endings = compiled.endings()
    for piece in (b"x", b"abacab", b"c"):
        endings.add(piece)
    assert [endings.at(place) for place in range(9)] == [False, True, False, True, True, True, False, True, True]
    with pytest.raises(IndexError):
        endings.at(9)


def test_what_a_limit_stopped_has_no_ends() -> None:
    compiled = ConstraintCompiler(vocabulary_of(PIECES)).compile(Constraint("regex", "[ab]*"))
    endings = compiled.endings()
    for piece in (b"ab", b"c", b"ab"):  # as if the matcher could not go on at the c
        endings.add(piece)
    assert [endings.at(place) for place in range(6)] == [True, True, True, False, False, False]


class Counting:
    """A matcher that counts its steps."""

    def __init__(self, matcher: Any) -> None:
        self.matcher, self.steps = matcher, 0

    def advance(self, token: int) -> bool:
        self.steps += 1
        return self.matcher.advance(token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.matcher, name)


def test_a_text_is_followed_once_and_only_as_far_as_is_asked() -> None:
    vocabulary = vocabulary_of(PIECES)
    compiled = ConstraintCompiler(vocabulary).compile(Constraint("json_schema", '{"type": "string"}'))
    matcher = Counting(compiled.start())
    endings = Endings(matcher, vocabulary)
    endings.add(b'"')
    for _ in range(500):
        endings.add(b"abc")
    assert not endings.at(300) and matcher.steps < 310
    for place in range(1501):
        assert not endings.at(place)
    assert matcher.steps == 1501


@pytest.mark.tiny
@pytest.mark.parametrize("stop", [{"stop": ["a", "b"]}, {"stop_regex": ["a+", "[a-z]+b"]}])
def test_many_stops_in_a_long_string_cost_no_more_than_its_length(
    tiny_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stop: dict[str, list[str]]
) -> None:
    engine = tiny_engine(speculation="off")  # a draft is tried on a copy, which is not what is counted here
    steps = 0
    advance, segment = LlgMatcher.advance, Vocabulary.segment

    def counted(self: LlgMatcher, token: int) -> bool:
        nonlocal steps
        steps += 1
        return advance(self, token)

    def spelled(self: Vocabulary, text: bytes) -> list[int] | None:
        nonlocal steps
        steps += len(text)
        return segment(self, text)

    monkeypatch.setattr(LlgMatcher, "advance", counted)
    monkeypatch.setattr(Vocabulary, "segment", spelled)
    letters = {ord("a"): 50.0, ord("b"): 49.0}
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    out = engine.generate("x", json_schema=schema, max_tokens=400, seed=1, logit_bias=letters, **stop)
    # It is closed in time, being a schema whose completions are known.
    assert out.finish_reason == "constraint" and out.text.count("a") > 100
    assert steps < 4 * len(out.text)
