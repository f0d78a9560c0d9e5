"""The language of a regex constraint is that of `re.fullmatch(pattern, text, re.ASCII)`."""

from __future__ import annotations

import re
import time
import warnings

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from palmette.errors import ConstraintError
from palmette.runtime.constraints.automaton import walk
from palmette.runtime.constraints.automaton_characters import CharacterAutomaton, build
from palmette.runtime.constraints.determinize import TooLarge
from palmette.runtime.constraints.regex_language import read_regex


def automaton(pattern: str) -> CharacterAutomaton:
    return build(read_regex(pattern), max_states=5000, deadline=time.monotonic() + 20)


def takes(dfa: CharacterAutomaton, text: str) -> bool:
    state = walk(dfa, dfa.start, text.encode())
    return state >= 0 and dfa.final(state)


def by_re(pattern: str, text: str, flags: int = re.ASCII) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.fullmatch(pattern, text, flags) is not None


# pattern, texts: Python itself says which of them match
SAME = [
    ("", ["", "a"]),
    (r"\d\w\s\D\W\S", ["1a b!c", "\u0661a b!c", "1\u00e9 b!c"]),
    (r"\w+", ["word_1", "\u00e9t\u00e9", ""]),
    (r"[^\W\d]\w*", ["snake_1", "1abc"]),
    (r"[a-z .!\"-_]+", ["see (below)", "see {below}"]),
    (r"[a-z .!\"\-_]+", ["well-done", "see (below)"]),
    (r"[]a]+", ["]a]", "b"]),
    (r"[^]a]+", ["bc", "]"]),
    (r"[a-z--x]", ["a", "-", "x", "+"]),
    (r"[a&&b]", ["a", "&", "b"]),
    (r"[[a]]", ["[]", "a]", "[", "a"]),
    (r"[\b\n\t\x41\u00e9]+", ["\b\n\tA\u00e9", "b"]),
    (r"[\]\\^-]+", ["]\\^-", "a"]),
    (r"a.c", ["abc", "a\nc", "a\rc", "a\u2028c", "a\U0010ffffc"]),
    (r"(?s)a.c", ["abc", "a\nc"]),
    (r"(?s:a.)c.", ["a\ncx", "a\nc\n"]),
    (r"(?i)stra\u00dfe", ["STRA\u00dfE", "stra\u1e9ee", "strasse"]),
    (r"(?i)k\u00e9", ["K\u00e9", "k\u00c9", "\u212a\u00e9"]),
    (r"(?i)[^a]", ["a", "A", "b", "\u00e0"]),
    (r"(?i:yes|no)!(?-i:x)", ["YES!x", "no!x", "No!X"]),
    (r"(?i:a(?-i:b)c)d", ["AbCd", "ABCd", "abcD"]),
    ("(?x) a b  # comment\n c\\ d [ ]", ["abc d ", "abcd "]),
    ("(?x)a {2}", ["aa", "a {2}"]),
    (r"a{2}b{1,}c{,2}d{1,2}", ["aabcd", "aabbbccdd", "abcd", "aabcccd"]),
    (r"a{,}b", ["b", "aaab", "a{,}b"]),
    (r"a{b}{1", ["a{b}{1", "ab"]),
    (r"x{0}y", ["y", "xy"]),
    (r"a*?b+?c??", ["b", "aabbc"]),
    (r"(?:a|ab)(?:c|bcd)", ["abcd", "ac", "abc", "acd"]),
    (r"(a*)*b", ["b", "aaab", "a"]),
    (r"(|a)+b", ["b", "aab"]),
    (r"(?:)", ["", "a"]),
    (r"(?P<y>\d{4})-(?#note)(?:\d\d)", ["2026-11", "26-11"]),
    (r"^abc$", ["abc", "abc\n", "xabc"]),
    (r"\Aabc\Z", ["abc", "abc\n"]),
    (r"^a|b$", ["a", "b", "ab"]),
    (r"(^a|b)c", ["ac", "bc", "c"]),
    (r"((^yes|^no)$)", ["yes", "no", "yesno"]),
    (r"(^a)?b", ["ab", "b"]),
    (r"^^a$$", ["a"]),
    (r"^$", ["", "a"]),
    (r"(?=.*\d)(?=.*[a-z])[a-z0-9]{4,6}", ["ab12", "abcd", "1234", "a1"]),
    (r"(?!admin)[a-z]{3,12}", ["alice", "admin", "administrator", "adm"]),
    (r"(?!admin$)[a-z\n]{3,12}", ["alice", "admin", "admin\n", "admins"]),
    (r"(?!admin\Z)[a-z\n]{3,12}", ["admin", "admin\n"]),
    (r"(?=(?!b)[ab])[a-c]+", ["ab", "ba", "ca"]),
    (r"(?!a)x|(?=b)[a-c]", ["x", "b", "a", "c"]),
    (r"a(?=b).", ["ab", "ac", "a"]),
    (r"a(?!b)", ["a", "ab"]),
    (r"(?=a(?!b))[ab]+", ["a", "aab", "ab"]),
    (r"[A-Z]{2}-(?!0+$)\d{3,}", ["AB-100", "AB-000", "AB-1000", "AB-0000", "AB-00"]),
    (r"(?:ab|cd)(?:(?!x)[a-z]|(?=1)\d)\w", ["aby_", "abx_", "cd1z", "cd2z"]),
    (r"\d{4}(?=.*b)(?!.*c)[a-z]*", ["2026ab", "2026ac", "2026abc", "2026"]),
    (r"\bfoo.*", ["foo", "foo bar", "foobar"]),
    (r"\bfoo\b", ["foo"]),
    (r"\b[a ]+\b", ["a a", " a", "a ", "a"]),
    (r"a++b", ["aab", "b"]),
    (r"[0-9]++[a-z]", ["12a", "a"]),
    (r"(?>a*)b", ["aab", "b", "a"]),
    (r"\07\101\0", ["\x07A\0", "7A0"]),
    (r"\N{BULLET}+", ["\u2022\u2022", "N"]),
    (r"\.\*\+\?\(\)\[\]\{\}\|\^\$\/\-", [".*+?()[]{}|^$/-", "x"]),
    ("[\U0001f600-\U0001f64f]+", ["\U0001f600\U0001f64f", "\U0001f650"]),
    ("[\ud7ff-\ue000]", ["\ud7ff", "\ue000", "\ue001"]),
    (r"[\U00000000-\U0010FFFF]", ["\0", "\U0010ffff", "\U0010fffe", ""]),
    (r"[^\x00-\x7F]+", ["\u00e9\u6c34\U0001f600", "e"]),
]


@pytest.mark.parametrize(("pattern", "texts"), SAME, ids=[p for p, _ in SAME])
def test_same_texts_as_python(pattern: str, texts: list[str]) -> None:
    dfa = automaton(pattern)
    assert [takes(dfa, t) for t in texts] == [by_re(pattern, t) for t in texts]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"(?u)\w+\s\d", ["\u00e9t\u00e9\u2003\u0661", "a b"]),
        (r"(?iu)k\u00e9s[\u00e0-\u00e5]", ["\u212a\u00c9\u017f\u00c5", "K\u00e9S\u212b", "k\u00e9s\u00e6"]),
        (r"(?iu)[^\u03c3]", ["\u03c2", "\u03a3", "s"]),
    ],
)
def test_unicode_on_request(pattern: str, texts: list[str]) -> None:
    dfa = automaton(pattern)
    assert [takes(dfa, t) for t in texts] == [by_re(pattern, t, 0) for t in texts]


def test_unicode_in_a_group_only() -> None:
    dfa = automaton(r"(?u:\w)\w")
    assert takes(dfa, "\u00e9a") and not takes(dfa, "\u00e9\u00e9")


@pytest.mark.parametrize(
    ("pattern", "pointer", "words"),
    [
        ("a(b", "@1", "not a valid regex"),
        ("[z-a]", "@1", "not a valid regex"),
        ("*a", "@0", "not a valid regex"),
        (r"x\p{L}", "@1", "not a valid regex"),
        (r"(['\"])[a-z]+\1", "@13", "back-reference"),
        (r"(?P<q>a)(?P=q)", "@8", "back-reference"),
        (r"[a-z]+(?<=x)y", "@6", "look-behind"),
        (r"a(?<!x)y", "@1", "look-behind"),
        (r"(a)?(?(1)b|c)", "@4", "conditional"),
        (r"foo\b.*", "@3", "word boundary"),
        (r"\Ba", "@0", "word boundary"),
        (r"a^b", "@1", "anchor"),
        (r"(a$)b", "@2", "anchor"),
        (r"(^a)*", "@1", "anchor"),
        (r"a+(?=b).", "@2", "look-ahead"),
        (r"(?:a(?=b).)+", "@4", "look-ahead"),
        (r"(?=a+(?!b))[ab]+", "@5", "look-ahead"),
        (r"(?m)^a$", "@4", "(?m)"),
        (r"a++a", "@1", "possessive"),
        (r"(ab)*+a", "@4", "possessive"),
        (r"(?>a|ab)c", "@0", "atomic"),
        ("(?L:a)", "@3", "not a valid regex"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_position(pattern: str, pointer: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(words)) as caught:
        read_regex(pattern)
    assert caught.value.pointer == pointer
    assert caught.value.hint


@pytest.mark.parametrize("pattern", [r"a[^\s\S]", "[\ud800]", r"[^\s\S]+|\d[^\d\D]"])
def test_a_regex_of_no_text_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError, match="no text"):
        read_regex(pattern)


@pytest.mark.parametrize("pattern", ["(" * 3000 + ")" * 3000, "a{99999999999999999999}"])
def test_hostile_syntax_is_an_error_not_a_crash(pattern: str) -> None:
    with pytest.raises(ConstraintError):
        read_regex(pattern)


def test_exponential_and_huge_automata_stop_at_their_budget() -> None:
    begun = time.monotonic()
    with pytest.raises(TooLarge) as states:
        build(read_regex("[ab]*a[ab]{40}"), max_states=2000, deadline=begun + 60)
    assert not states.value.expired
    with pytest.raises(TooLarge) as positions:
        build(read_regex("((((a{50}){50}){50}){50}){50}"), max_states=2000, deadline=begun + 60)
    assert not positions.value.expired
    with pytest.raises(TooLarge) as late:
        build(read_regex("[ab]*a[ab]{40}"), max_states=1 << 60, deadline=begun)
    assert late.value.expired


# -- fuzzing

ATOMS = st.sampled_from(
    ["a", "b", "ab", ".", r"\d", r"\W", r"\s", "[ab]", "[^a]", "[a-c1]", r"[^\d]", "\u00e9", "[\u00e0-\u6c34]", r"\n"]
)
QUANTIFIERS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "{2}", "{1,2}", "{,2}", "{1,}?", "{0}"])
ALPHABET = st.sampled_from("abcA1 \n-\u00e9\u6c34\U0001f600")


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantified = st.tuples(inner, QUANTIFIERS).map(lambda t: f"(?:{t[0]}){t[1]}")
    return st.one_of(
        quantified,
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        inner.map(lambda p: f"(?i:{p})"),
        inner.map(lambda p: f"({p}|)"),
        st.tuples(inner, inner).map(lambda t: f"(?:(?!{t[0]}){t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"(?:(?={t[0]}$){t[1]})"),
        inner.map(lambda p: f"(?:^{p}|{p}$)"),
        inner.map(lambda p: rf"(?:\b{p})"),
        inner.map(lambda p: rf"(?:{p}\b)"),
    )


PATTERNS = st.recursive(st.tuples(ATOMS, QUANTIFIERS).map("".join), compound, max_leaves=6)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(PATTERNS, st.lists(st.lists(ALPHABET, max_size=6).map("".join), min_size=4, max_size=8))
def test_fuzz_structured_patterns(pattern: str, texts: list[str]) -> None:
    try:
        dfa = automaton(pattern)
    except (ConstraintError, ValueError, TooLarge):
        assume(False)
    for text in ["", "a", "b", "ab", "a\n", *texts]:
        assert takes(dfa, text) == by_re(pattern, text), (pattern, text)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.text(st.sampled_from(r"ab01\()[]{}|*+?^$.-,:=!<>PisdwbAZ#x "), max_size=10),
    st.lists(st.text(st.sampled_from(r"ab01\[]{}^-, P:"), max_size=5), min_size=3, max_size=6),
)
def test_fuzz_raw_patterns(pattern: str, texts: list[str]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern, re.ASCII)
        valid = True
    except (re.error, OverflowError):
        valid = False
    try:
        dfa = automaton(pattern)
    except (ConstraintError, ValueError, TooLarge):
        return
    assert valid
    for text in ["", "a", "b", "0", *texts, pattern]:
        assert takes(dfa, text) == by_re(pattern, text), (pattern, text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF), st.lists(st.integers(0, 0x10FFFF), max_size=20))
def test_every_character_of_a_range_and_no_other(a: int, b: int, more: list[int]) -> None:
    lo, hi = sorted((a, b))
    assume(not 0xD800 <= lo <= 0xDFFF or not 0xD800 <= hi <= 0xDFFF)
    dfa = automaton(f"[\\U{lo:08x}-\\U{hi:08x}]")
    for code in {lo, hi, lo - 1, hi + 1, (lo + hi) // 2, *more}:
        if 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            assert takes(dfa, chr(code)) == (lo <= code <= hi)
