"""Grammars in llama.cpp's and xgrammar's notation."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.errors import ConstraintError
from palmette.runtime.constraints import ConstraintCompiler, Vocabulary, accepts, validate
from palmette.runtime.protocol import Constraint

JSON = r"""
# JSON as RFC 8259 has it, blanks between the parts
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""

LIST = r"""root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"  # one line each
"""

CHESS = r"""
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""

SAMPLES = [
    (JSON, '{"a": [1, -2.5e+3, {"b\\u00e9": null}], "水": ""}', True),
    (JSON, "{}", True),
    (JSON, '{"a": 01}', False),
    (JSON, '{"a": "x\ny"}', False),
    (JSON, "[1]", False),
    (ARITHMETIC, "x1 +(2*3) = 7\n", True),
    (ARITHMETIC, "a=b\n(((c)))=d\n", True),
    (ARITHMETIC, "a=(b\n", False),
    (LIST, "- eggs\n- m\u00fcsli \U0001f95b\n", True),
    (LIST, "- eggs\n-milk\n", False),
    (CHESS, "1. e4 e5\n2. Nf3 Nc6\n3. Bb5 a6\n4. O-O exd4#\n", True),
    (CHESS, "1. e4 e5\n", False),
]


@pytest.mark.parametrize(("grammar", "text", "right"), SAMPLES)
def test_classic_grammars(grammar: str, text: str, right: bool) -> None:
    assert accepts(text, grammar=grammar) == right


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= "a" "b" | "abc"', ["ab", "abc"], ["a", "abcc"]),
        ('root ::= "ab"{2,3} "c"?', ["abab", "abababc"], ["ab", "abababab"]),
        ("root ::= [a-c-]{2}", ["a-", "--", "bc"], ["d-", "a"]),
        ('root ::= ("a" | ) "b"', ["ab", "b"], ["a"]),
        ('root ::= "" | "x"+', ["", "xx"], ["y"]),
        (r'root ::= "\t\"\\\x41\u00e9\U0001F600" .', ['\t"\\A\u00e9\U0001f600\n'], ["\t"]),
        (r"root ::= [^\]\[]*", ["a\n"], ["]"]),
        ('root ::= a.b-c_1\na.b-c_1 ::= "x" root "y" | "z"', ["xzy", "xxzyy"], ["xzyy"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a"]),
        ('root ::= ("a"*)* "b"', ["b", "aab"], ["a"]),
        ('root ::= "a" |\n  # a comment\n  "b"\n', ["a", "b"], ["ab"]),
    ],
)
def test_the_notation(grammar: str, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert accepts(text, grammar=grammar), text
    for text in wrong:
        assert not accepts(text, grammar=grammar), text


def test_what_never_ends_is_not_begun() -> None:
    grammar = 'root ::= "a" | "b" loop | ("c" loop)* "d"\nloop ::= "x" loop'
    assert accepts("a", grammar=grammar) and accepts("d", grammar=grammar)
    for text in ("b", "bx", "cd"):
        assert not accepts(text, grammar=grammar)
    with pytest.raises(ConstraintError, match="no text matches"):
        validate(Constraint("grammar", "root ::= root"))


@pytest.mark.parametrize(
    ("grammar", "at", "words"),
    [
        ('root ::= "a', "@9", "not closed"),
        ("root ::= [a", "@9", "not closed"),
        ('root ::= ("a"', "@9", "not closed"),
        ('root ::= "a")', "@12", "never opened"),
        ("root ::= item", "@9", "not defined"),
        ('root ::= "a"{x}', "@12", "no counts"),
        ('root ::= "a"{3,2}', "@12", "larger"),
        ("root ::= [z-a]", "@10", "before"),
        ('root ::= "\\q"', "@10", "escape"),
        ('root ::= "\\ud800"', "@10", "UTF-8"),
        ("root ::= <think>", "@9", "no meaning"),
        ('root ::= (="a") "b"', "@9", "look-ahead"),
        ('root ::= "a"\nroot ::= "b"', "@13", "twice"),
        ('base ::= "a"', "", "no rule"),
        ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "", "too deeply"),
    ],
)
def test_errors_say_where(grammar: str, at: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=words) as caught:
        validate(Constraint("grammar", grammar))
    assert caught.value.pointer == at and caught.value.hint


COMPILER = ConstraintCompiler(Vocabulary.of_bytes())

_leaves = st.sampled_from(['"a"', '"ab"', "[ab]", "[^a]", '""', '"b"'])
_items = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(" ".join),
        st.tuples(inner, inner).map(lambda p: f"({p[0]} | {p[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map(lambda p: f"({p[0]}){p[1]}"),
    ),
    max_leaves=5,
)


@given(_items)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_grammar_without_recursion_is_a_regex(body: str) -> None:
    pattern = re.sub(r"\(", "(?:", body.replace('"', "").replace(" ", ""))
    compiled = COMPILER.compile(Constraint("grammar", f"root ::= {body}"))
    for text in ("", "a", "b", "ab", "aa", "ba", "aba", "abab", "aab", "bb", "ca"):
        assert compiled.accepts(text.encode()) == bool(re.fullmatch(pattern, text)), (text, body)


def test_json_texts_are_taken() -> None:
    for value in ({"a": [1, 2, {"b": [True, None]}]}, {"k" * 50: '\u00e9\n"' * 20}, {}):
        assert accepts(json.dumps(value), grammar=JSON)
