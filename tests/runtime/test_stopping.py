"""Stop patterns: against `re.search` on the growing text, and against what may still become a match."""

from __future__ import annotations

import re
from functools import cache

import pytest
import regex
from hypothesis import assume, given
from hypothesis import strategies as st

from palmette.errors import ConstraintError
from palmette.runtime.detokenize import StopHit, TextStream
from palmette.runtime.stopping import StopCompiler, StopPattern, validate_stop

LETTERS = "abñ\n"


def atoms() -> st.SearchStrategy[str]:
    return st.sampled_from(["a", "b", "ñ", ".", "[ab]", "[^a]", r"\n", r"\w", "(?s:.)", "👈"])


def patterns() -> st.SearchStrategy[str]:
    """Patterns that Python and we read alike."""
    return st.recursive(
        atoms(),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
            st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,2}", "*?", "{2,}"])).map(
                lambda pair: f"(?:{pair[0]}){pair[1]}"
            ),
        ),
        max_leaves=6,
    )


@cache
def compiled(pattern: str) -> StopPattern:
    return StopCompiler().compile(pattern)


def compiled_or_refused(pattern: str) -> StopPattern:
    """A pattern that matches the empty text is refused, and not looked at further."""
    if re.match(pattern, "", re.ASCII):
        with pytest.raises(ConstraintError, match="empty text"):
            compiled(pattern)
        assume(False)
    return compiled(pattern)


def first_stop(text: str, asked: list[str], late: int = 0) -> tuple[int, str] | None:
    """Where the text is cut, and by what, when it comes character by character; nothing counts in the first `late`."""
    for end in range(late + 1, len(text) + 1):
        hits = []
        for pattern in asked:
            begins = [b for b in range(end) if re.compile(pattern, re.ASCII).fullmatch(text, b, end)]
            hits += [(begin, pattern) for begin in begins[:1]]
        if hits:
            return min(hits, key=lambda hit: hit[0])
    return None


def cut_up(text: str, sizes: list[int]) -> list[bytes]:
    raw, pieces = text.encode(), []
    for size in sizes:
        pieces.append(raw[:size])
        raw = raw[size:]
    return [*pieces, raw]


@given(
    st.lists(patterns(), min_size=1, max_size=2), st.text(LETTERS, max_size=10), st.lists(st.integers(0, 3), max_size=9)
)
def test_a_text_stops_where_search_first_finds_the_pattern(asked: list[str], text: str, sizes: list[int]) -> None:
    stream = TextStream((), [compiled_or_refused(pattern) for pattern in asked])
    want = first_stop(text, asked)
    if len(asked) == 1:
        ends = (m for end in range(1, len(text) + 1) if (m := re.search(asked[0], text[:end], re.ASCII)))
        found = next(ends, None)
        assert (want and want[0]) == (found and found.start())
    shown = ""
    hit: StopHit | None = None
    for piece in cut_up(text, sizes):
        hit = stream.feed(piece)
        if hit is not None:
            stream.cut(hit.at)
            break
        shown += stream.take()
    if want is None:
        assert hit is None
        assert stream.text() == text
    else:
        assert hit is not None and (stream.text(), hit.stop) == (text[: want[0]], want[1])
    # What was shown before the end is part of what is left after it.
    assert shown + stream.take(final=True) == stream.text()


@given(patterns(), st.text(LETTERS, max_size=8))
def test_just_what_may_become_a_match_is_held_back(pattern: str, text: str) -> None:
    # The library that tells partial matches errs where quantifiers are lazy, which changes nothing about what matches.
    greedy = regex.compile(re.sub(r"([*+?}])\?", r"\1", pattern), regex.A)
    stream = TextStream((), [compiled_or_refused(pattern)])
    for end, character in enumerate(text, 1):
        if stream.feed(character.encode()) is not None:
            return
        stream.take()
        begins = (b for b in range(end) if greedy.fullmatch(text[b:end], partial=True))
        assert stream.shown == len(text[: next(begins, end)].encode())


@given(
    patterns(),
    st.text("ab", max_size=10),
    st.lists(st.integers(0, 3), max_size=9),
    st.sets(st.integers(0, 9)),
    st.integers(0, 4),
)
def test_where_a_match_may_not_begin_the_next_place_that_counts_is_found(
    pattern: str, text: str, sizes: list[int], refused: set[int], late: int
) -> None:
    asked: list[int] = []

    def opens(at: int) -> bool:
        asked.append(at)
        return at not in refused

    stream = TextStream((), [compiled_or_refused(pattern)], opens=opens)
    pieces = [text[:late].encode(), *cut_up(text[late:], sizes)]
    hits = [stream.feed(pieces[0], counts=False)]
    for piece in pieces[1:]:
        hits.append(stream.feed(piece))
        if hits[-1] is not None:
            break
    want = None
    for end in range(late + 1, len(text) + 1):
        begins = (b for b in range(end) if b not in refused and re.compile(pattern, re.A).fullmatch(text, b, end))
        want = next(begins, None)
        if want is not None:
            break
    assert (hits[-1] and hits[-1].at) == want
    # However many matches begin at a place, it is asked about once.
    assert len(asked) == len(set(asked))


def test_strings_and_patterns_end_a_text_together() -> None:
    stream = TextStream(["END"], [compiled("[0-9]+;"), compiled("E?N")])
    assert stream.feed(b"ab 12") is None
    assert stream.take() == "ab "
    assert stream.feed(b"3EN") == StopHit("E?N", 6)
    again = TextStream(["12;"], [compiled("[0-9]+;")])
    assert again.feed(b"012;") == StopHit("[0-9]+;", 0)


def test_the_text_in_front_is_shown_and_not_searched() -> None:
    stream = TextStream(["bc"], [compiled("b+d")], prefix=b"abb")
    assert stream.take() == "abb"
    assert stream.feed(b"cd") is None
    assert stream.feed(b"bcx") == StopHit("bc", 5)


def test_a_long_text_costs_no_more_threads_than_states() -> None:
    pattern = compiled("(?:ab|a)*c")
    stream = TextStream((), [pattern])
    for _ in range(2000):
        assert stream.feed(b"ab") is None
    (search,) = stream._searches
    assert len(search._threads) <= 4
    assert search.held == 0
    assert stream.feed(b"c") == StopHit("(?:ab|a)*c", 0)


@pytest.mark.parametrize(
    ("pattern", "pointer", "says"),
    [
        ("", "@0", "empty text"),
        ("a*", "@0", "empty text"),
        ("(a|b?)", "@0", "empty text"),
        ("^a", "@0", "anchor"),
        ("ab$", "@2", "anchor"),
        (r"a\b", "@1", "word boundary"),
        ("a(?=b)", "@1", "look-ahead"),
        ("(?<=b)a", "@0", "look-behind"),
        (r"(a)\1", "@3", "back-reference"),
        ("a[", "@1", "not a valid regex"),
        ("(?>a|ab)c", "@0", "atomic"),
        ("(?m)a$", "@5", "(?m)"),
        ("a[^\\x00-\U0010ffff]", "@0", "no text"),
    ],
)
def test_what_cannot_stop_a_text_is_refused_with_its_place(pattern: str, pointer: str, says: str) -> None:
    for refuse in (validate_stop, StopCompiler().compile):
        with pytest.raises(ConstraintError) as caught:
            refuse(pattern)
        assert (caught.value.pointer, says in str(caught.value)) == (pointer, True)
        assert repr(pattern) in str(caught.value) and caught.value.hint


def test_too_large_a_pattern_is_refused_and_the_refusal_kept() -> None:
    compiler = StopCompiler()
    for _ in range(2):
        with pytest.raises(ConstraintError, match="states"):
            compiler.compile("[ab]*a[ab]{30}")
    assert compiler.nbytes == 4096


def test_compiled_patterns_are_kept_within_their_bound() -> None:
    compiler = StopCompiler(cache_bytes=40_000)
    first = compiler.compile("a0")
    assert compiler.compile("a0") is first
    for i in range(1, 200):
        compiler.compile(f"a{i}")
        assert compiler.nbytes <= 40_000
    assert compiler.compile("a0") is not first
