"""Masks against walking each token by itself, and rows that are shared."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.runtime.constraints import ConstraintCompiler, Vocabulary
from palmette.runtime.constraints.automaton import walk
from palmette.runtime.constraints.automaton_matcher import AutomatonConstraint
from palmette.runtime.constraints.token_masks import allowed_tokens
from palmette.runtime.protocol import Constraint

PATTERNS = [
    r".*", r".{1,40}", r"[a-z ]{0,12}x?", r"[^\"\\]*", r"(?u:\w+)", r"(ab|é|😀)*", r"[^é]{3,}", r"\w+( \w+){2,5}",
    r"(?!a).*", r"[\x00-\U0010FFFF]*", r"[Ā-￿]+", r"a|b.*", r"(.{7})*", r"[^\n]{1,9}\n",
]  # fmt: skip
SOME = [*'abxéß水😀\n "\\ą', "ab", "the", " the", "\n\n", "é水", 'a"b', "x" * 9, "ab" * 20, "水" * 7, " " * 70]
RAW = [b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80", b"a\xe6\xb0", b"\xff", b"\xa9a", b"\xed\xa0\x80", b"\xc0\x80"]
TOKENS = [s.encode() for s in SOME] + RAW
VOCABULARY = Vocabulary([*TOKENS, None], width=len(TOKENS) + 1, end_ids=frozenset({len(TOKENS)}))


def compiled(pattern: str, compiler: ConstraintCompiler | None = None) -> AutomatonConstraint:
    found = (compiler or ConstraintCompiler(VOCABULARY)).compile(Constraint("regex", pattern))
    assert isinstance(found, AutomatonConstraint)
    return found


@given(st.sampled_from(PATTERNS), st.lists(st.integers(0, len(TOKENS) - 1), max_size=6))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_tokens_are_those_that_can_be_walked(pattern: str, tokens: list[int]) -> None:
    automaton = compiled(pattern).automaton
    state = automaton.start
    for token in tokens:
        to = walk(automaton, state, TOKENS[token])
        state = to if to >= 0 else state
    single = [i for i, token in enumerate(TOKENS) if walk(automaton, state, token) >= 0]
    assert sorted(allowed_tokens(automaton, state, VOCABULARY.trie).tolist()) == single
    for node in VOCABULARY.trie.children(np.zeros(3, np.int64), np.frombuffer(b"\xc3a ", np.uint8)).tolist():
        first = bytes([VOCABULARY.trie.byte[node]])
        below = {i for i, t in enumerate(TOKENS) if t.startswith(first) and len(t) > 1}
        wanted = [i for i in sorted(below) if walk(automaton, state, TOKENS[i][1:]) >= 0]
        assert sorted(allowed_tokens(automaton, state, VOCABULARY.trie, node).tolist()) == wanted


def test_states_that_no_token_tells_apart_share_a_row() -> None:
    compiler = ConstraintCompiler(VOCABULARY)
    wide = compiled(r".{1,5000}", compiler)
    row = np.zeros(VOCABULARY.words, np.int32)
    matcher = wide.start()
    for _ in range(4000):
        matcher.fill(row)
        assert matcher.advance(TOKENS.index(b"x"))
    made = compiler.stats.nbytes
    assert len(compiler._rows._rows) == 2, "one where the text may not end yet, one where it may"
    # Other patterns with the same characters to come: their rows are there already.
    for pattern in (r"<.*", r"a.{0,3000}", r"(.{300}|x.*)+"):
        matcher = compiled(pattern, compiler).start()
        assert matcher.advance(TOKENS.index(b"a")) or pattern[0] == "<"
        matcher.fill(row)
    assert len(compiler._rows._rows) <= 4
    assert made > 0


def test_shortest_ends() -> None:
    for pattern, state_text, wanted in [
        (r"a{3}[é水]b", "", b"aaa\xc3\xa9b"),
        (r"(foo|quite long)\.", "q", b"uite long."),
        (r"[^\x00-\x7f]{2}", "é", b"\xc2\x80"),
        (r".*", "anything", b""),
        (r"(x{1000})+", "", b"x" * 1000),
    ]:
        automaton = compiled(pattern).automaton
        assert automaton.shortest_end(walk(automaton, automaton.start, state_text.encode())) == wanted
    within = compiled("[水x]a").automaton
    assert within.shortest_end(walk(within, within.start, "水".encode()[:1])) == "水".encode()[1:] + b"a"
    choices = ConstraintCompiler(VOCABULARY).compile(Constraint("choices", ("abcdef", "abx", "ab水", "q")))
    assert isinstance(choices, AutomatonConstraint)
    trie = choices.automaton
    assert [trie.shortest_end(walk(trie, 0, t)) for t in (b"", b"a", b"ab", b"abc", b"abx")] == [
        b"q", b"bx", b"x", b"def", b"",
    ]  # fmt: skip
