"""All matchers keep the one protocol: mask, advance, rollback, fork, forced, end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest

from palmette.runtime.constraints import ConstraintCompiler, Matcher, Vocabulary
from palmette.runtime.protocol import Constraint

# Single bytes with whole and broken characters, words that cross the edges of JSON, control tokens and padding.
PIECES = [
    *(bytes([b]) for b in range(256)),
    *b'ab abc {" ":" ", "} " the he llo \n\t 12 123 true false null [] {} ]} ": , \\" \\u 00 yes no'.split(b" "),
    *(s.encode() for s in ("\u00e9", "\u6c34", "\U0001f600", "x\u00e9")),
    *(b"\xf0\x9f", b"\x98\x80", b"\xc3", b'\xa9"'),
]
END, OTHER_END, CONTROL = len(PIECES), len(PIECES) + 1, len(PIECES) + 2
WIDTH = len(PIECES) + 40


def longest_first(text: bytes) -> list[int]:
    """A tokenizer for the pieces: greedy, so that its tokens of a text depend on what follows."""
    ids = {b: i for i, b in reversed(list(enumerate(PIECES)))}
    out = []
    while text:
        n = next(n for n in range(len(text), 0, -1) if text[:n] in ids)
        out.append(ids[text[:n]])
        text = text[n:]
    return out


def toy(encode: Callable[[bytes], list[int]] | None = longest_first) -> Vocabulary:
    return Vocabulary([*PIECES, None, None, None], width=WIDTH, end_ids=frozenset({END, OTHER_END}), encode=encode)


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"the": {"type": "boolean"}, "n": {"type": "integer"}, "s": {"type": "string", "maxLength": 4}},
        "required": ["the", "n"],
        "additionalProperties": False,
    }
)
CONSTRAINTS = {
    "choices": Constraint("choices", ("yes", "yes, the", "no", "\u6c34\U0001f600", "")),
    "regex": Constraint("regex", r"(the |[\u00e0-\u00ff]|[^a-z]{2})+!?"),
    "wide regex": Constraint("regex", r".{1,300}\n"),
    "json_schema": Constraint("json_schema", SCHEMA),
    "spaced json_schema": Constraint("json_schema", SCHEMA, whitespace=True),
    "grammar": Constraint("grammar", 'start: "the " word+ "."\nword: /[a-z]+/ | "\u6c34"\n'),
}


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return ConstraintCompiler(toy())


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    row = np.full(vocabulary.words, -1, np.int32)  # a row is overwritten, whatever it held
    assert matcher.fill(row) is True
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def draw(matcher: Matcher, vocabulary: Vocabulary, chance: random.Random, limit: int) -> list[int]:
    """Tokens drawn at random from the masks, until an end token or the limit."""
    tokens = []
    while len(tokens) < limit:
        options = sorted(allowed(matcher, vocabulary))
        assert options, "nothing is allowed, not even the end"
        ends = [t for t in options if t in vocabulary.end_ids]
        token = chance.choice(ends if ends and chance.random() < 0.3 else options)
        assert matcher.advance(token)
        tokens.append(token)
        if token in vocabulary.end_ids:
            break
    return tokens


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_mask_says_what_advance_takes(name: str, compiler: ConstraintCompiler) -> None:
    compiled = compiler.compile(CONSTRAINTS[name])
    chance = random.Random(name)
    for _ in range(5):
        matcher = compiled.start()
        for _ in range(8):
            bits = allowed(matcher, compiler.vocabulary)
            for token in range(-2, WIDTH + 40):
                if token in bits:
                    assert matcher.fork().advance(token), (name, token)
                else:
                    assert not matcher.advance(token), (name, token)
            assert allowed(matcher, compiler.vocabulary) == bits, "a refused token must change nothing"
            assert bits.isdisjoint(range(CONTROL, WIDTH + 40))
            assert (bits & {END, OTHER_END} == {END, OTHER_END}) is matcher.allows_end()
            if matcher.done():
                assert matcher.allows_end() and bits == {END, OTHER_END}
            options = sorted(bits - {END, OTHER_END})
            if not options:
                break
            matcher.advance(chance.choice(options))


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_text_is_accepted_exactly_where_the_end_is_allowed(name: str, compiler: ConstraintCompiler) -> None:
    compiled = compiler.compile(CONSTRAINTS[name])
    chance = random.Random(name)
    ended = 0
    for _ in range(40):
        matcher = compiled.start()
        tokens = draw(matcher, compiler.vocabulary, chance, 25)
        ended += tokens[-1] in (END, OTHER_END)
        assert compiled.accepts(compiler.vocabulary.text(tokens)) == matcher.allows_end()
    assert ended


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_rollback_and_fork_equal_a_fresh_replay(name: str, compiler: ConstraintCompiler) -> None:
    compiled = compiler.compile(CONSTRAINTS[name])
    vocabulary = compiler.vocabulary
    chance = random.Random(name)
    for _ in range(25):
        matcher = compiled.start()
        tokens = draw(matcher, vocabulary, chance, 20)
        for _ in range(4):
            twin = matcher.fork()
            back = chance.randint(0, len(tokens))
            matcher.rollback(back)
            kept = tokens[: len(tokens) - back]
            fresh = compiled.start()
            assert all(map(fresh.advance, kept))
            assert allowed(matcher, vocabulary) == allowed(fresh, vocabulary)
            assert (matcher.allows_end(), matcher.done()) == (fresh.allows_end(), fresh.done())
            whole = compiled.start()
            assert all(map(whole.advance, tokens))
            assert allowed(twin, vocabulary) == allowed(whole, vocabulary), "a fork is not moved by its origin"
            tokens = kept if kept and kept[-1] in vocabulary.end_ids else kept + draw(matcher, vocabulary, chance, 5)
        with pytest.raises(ValueError, match="roll back"):
            matcher.rollback(len(tokens) + 1)


def test_every_end_token_ends_and_nothing_follows(compiler: ConstraintCompiler) -> None:
    for constraint, text in ((CONSTRAINTS["choices"], b"yes"), (CONSTRAINTS["json_schema"], b'{"the":true,"n":1}')):
        for end in (END, OTHER_END):
            matcher = compiler.compile(constraint).start()
            assert not matcher.advance(end) or text == b"yes"
            matcher = compiler.compile(constraint).start()
            assert all(map(matcher.advance, text))
            assert matcher.advance(end) and matcher.done() and matcher.allows_end() and matcher.forced() == []
            assert not matcher.advance(ord("x"))
            assert allowed(matcher, compiler.vocabulary) == {END, OTHER_END}
            matcher.rollback(1)
            assert matcher.allows_end()


def test_a_choice_that_another_extends_may_end_or_go_on(compiler: ConstraintCompiler) -> None:
    matcher = compiler.compile(Constraint("choices", ("yes", "yes, the", "yes"))).start()
    assert not matcher.allows_end()
    assert all(map(matcher.advance, b"yes"))
    assert matcher.allows_end() and not matcher.done() and matcher.forced() == []
    assert allowed(matcher, compiler.vocabulary) == {END, OTHER_END, *(i for i, b in enumerate(PIECES) if b == b",")}
    assert all(map(matcher.advance, b", the"))
    assert matcher.done()


def test_the_empty_choice_and_the_empty_regex(compiler: ConstraintCompiler) -> None:
    for constraint in (Constraint("choices", ("",)), Constraint("regex", "")):
        matcher = compiler.compile(constraint).start()
        assert matcher.done()
        assert allowed(matcher, compiler.vocabulary) == {END, OTHER_END}
        assert compiler.compile(constraint).accepts(b"") and not compiler.compile(constraint).accepts(b"a")


def test_case_rx_01_characters_spread_over_tokens() -> None:
    spelled = [bytes.fromhex(h) for h in ("f0", "9f", "98", "a8", "99", "8f", "61", "f09f988d")]
    vocabulary = Vocabulary([*spelled, None], width=9, end_ids=frozenset({8}))
    compiled = ConstraintCompiler(vocabulary).compile(Constraint("regex", "[\U0001f600-\U0001f64f]+"))
    for prefix, legal in (
        ([], {0, 7}),
        ([0, 1], {2, 4}),
        ([0, 1, 4], {5}),
        ([0, 1, 2], {1, 2, 3, 4, 5}),
        ([0, 1, 2, 3], {0, 7, 8}),
        ([7], {0, 7, 8}),
    ):
        matcher = compiled.start()
        assert all(map(matcher.advance, prefix))
        assert allowed(matcher, vocabulary) == legal


# -- forced tokens


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_forced_tokens_are_those_of_the_tokenizer(name: str, compiler: ConstraintCompiler) -> None:
    """Forced tokens, together with what a canonical writer puts between them, are the tokenizer's own of the text."""
    compiled = compiler.compile(CONSTRAINTS[name])
    vocabulary = compiler.vocabulary
    chance = random.Random(name)
    for _ in range(40):
        text = vocabulary.text(draw(compiled.start(), vocabulary, chance, 60))
        if not compiled.accepts(text):
            continue
        own = longest_first(text)
        matcher, done = compiled.start(), 0
        while done < len(own):
            forced = matcher.forced(own[:done])
            assert forced == own[done : done + len(forced)], (text, done)
            for token in forced or own[done : done + 1]:
                assert matcher.advance(token)
                done += 1


def test_forced_runs_stop_where_a_longer_token_may_come(compiler: ConstraintCompiler) -> None:
    def forced(pattern: str, before: bytes = b"") -> bytes:
        recent = longest_first(before)
        return compiler.vocabulary.text(compiler.compile(Constraint("regex", pattern)).start().forced(recent))

    assert forced("hello") == b"hello"  # nothing can follow: nothing is held back
    assert forced("xab[cd]") == b"x"  # "abc" is a token
    assert forced("xab[de]") == b"xab"
    assert forced("x12(true)?") == b"x12"
    assert forced("he", b"t") == b"he"  # it would have written "the", but "t" is there and stays
    assert forced("he", b"x") == b"he"
    assert forced("x\u00e9[ab]") == b"x\xc3\xa9"
    assert forced("[\u6c34\u6c35]") == b""  # forced bytes that are no whole character are left to the model
    assert compiler.compile(Constraint("regex", "x12")).start().forced([CONTROL, *longest_first(b"te")][:1]) != []


def test_json_forces_its_keys(compiler: ConstraintCompiler) -> None:
    matcher = compiler.compile(CONSTRAINTS["json_schema"]).start()
    assert compiler.vocabulary.text(matcher.forced()).startswith(b'{"the"')


def test_nothing_is_forced_without_an_encoder() -> None:
    compiler = ConstraintCompiler(toy(encode=None))
    for name in ("json_schema", "choices", "regex"):
        assert compiler.compile(CONSTRAINTS[name]).start().forced() == []
    assert compiler.compile(Constraint("regex", "hello")).start().forced() == []


def test_a_vocabulary_with_gaps_gets_exact_masks() -> None:
    """Tokens that cannot spell all of the text, and a tokenizer that drops what it cannot spell (case rx-05)."""
    names, flags = ("ab", "axb"), ("true", "false")
    texts = [f'{{"name":"{name}","n":{flag}}}' for name in names for flag in flags]
    properties = {"name": {"enum": [*names]}, "n": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["name", "n"], "additionalProperties": False}
    for seed in range(60):
        chance = random.Random(seed)
        parts = {text[at : at + chance.randint(1, 8)] for text in texts * 3 for at in [chance.randrange(len(text))]}
        pieces = [part.encode() for part in sorted(parts | set('{":,}' if seed % 2 else ""))]
        ids = {piece: token for token, piece in enumerate(pieces)}

        def drop(text: bytes, ids: dict[bytes, int] = ids) -> list[int]:
            return [ids[text[at : at + 1]] for at in range(len(text)) if text[at : at + 1] in ids]

        vocabulary = Vocabulary([*pieces, None], width=len(pieces) + 1, end_ids=frozenset({len(pieces)}), encode=drop)
        matcher = ConstraintCompiler(vocabulary).compile(Constraint("json_schema", json.dumps(schema))).start()
        text, options = "", [0]
        while options:
            row = np.zeros(vocabulary.words, np.int32)
            matcher.fill(row)
            options = [token for token in range(len(pieces)) if row[token >> 5] >> (token & 31) & 1]
            grown = [text + piece.decode() for piece in pieces]
            assert options == [i for i, one in enumerate(grown) if any(whole.startswith(one) for whole in texts)]
            if options:
                token = chance.choice(options)
                assert matcher.advance(token)
                text = grown[token]


# -- the vocabulary


def test_vocabulary_spells_segments_and_has_a_fingerprint() -> None:
    vocabulary = toy()
    assert vocabulary.words == -(-WIDTH // 32)
    assert vocabulary.fingerprint == toy().fingerprint != Vocabulary.of_bytes().fingerprint
    text = 'the "\u6c34\U0001f600'.encode()
    assert vocabulary.text(vocabulary.segment(text) or []) == text
    assert vocabulary.segment(b"") == []
    gaps = Vocabulary([b"ab", b"a", b"bc", None], width=4, end_ids=frozenset({3}))
    assert gaps.segment(b"abc") == [1, 2]  # greedy would be stuck after "ab"
    assert gaps.segment(b"abca") == [1, 2, 1]
    assert gaps.segment(b"b") is None


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Vocabulary([b"a", b"b"], width=1, end_ids=frozenset())
    with pytest.raises(ValueError, match="end token"):
        Vocabulary([b"a", b"b"], width=2, end_ids=frozenset({2}))
