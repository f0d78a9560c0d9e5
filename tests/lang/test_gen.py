"""gen, select, roles: what they make, and what they refuse at once."""

from __future__ import annotations

import json

import pytest

import palmette as pt
from palmette.lang.nodes import Gen, RoleBegin, RoleEnd, Select, Sequence, Text
from palmette.lang.sampling import Sampling


def test_settings_arrive_and_what_is_not_given_stays_open():
    node = pt.gen("x", max_tokens=5, stop="a", temperature=0, logit_bias={3: -1}, seed=-1)
    assert node.sampling == Sampling(max_tokens=5, stop=("a",), temperature=0.0, logit_bias=((3, -1.0),), seed=-1)
    node = pt.gen("x", n=2, best_of=3, stop_regex="a+", logprobs=0, logprob_token_ids=[4, 2])
    assert node.sampling == Sampling(n=2, best_of=3, stop_regex=("a+",), logprobs=0, logprob_token_ids=(4, 2))
    assert pt.gen() == Gen()
    assert pt.gen("x", 7).sampling.max_tokens == 7


def test_settings_of_the_gen_win_over_defaults():
    own = pt.gen("x", temperature=0, stop=[]).sampling
    assert own.over(Sampling(temperature=1.0, stop=("z",), n=2)) == {"temperature": 0.0, "stop": (), "n": 2}


def test_sglangs_spellings():
    assert pt.gen("x", max_new_tokens=4).sampling.max_tokens == 4
    assert pt.gen("x", return_logprob=True).sampling.logprobs == 0
    assert pt.gen("x", return_logprob=True, top_logprobs_num=3).sampling.logprobs == 3
    assert pt.gen("x", return_logprob=False).sampling.logprobs is None
    assert pt.gen("x", dtype="int") == pt.gen("x", type=int)
    assert pt.gen("x", choices=["a", "b"], choices_method="greedy_token_selection") == Select(
        "x", ("a", "b"), "greedy_token_selection"
    )
    assert pt.select("x", ["a"], choices_method="token_length_normalized").method == "token_length_normalized"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"max_token": 3}, TypeError, "did you mean 'max_tokens'"),
        ({"max_tokens": -1}, pt.ArgumentError, "max_tokens=-1 is out of range"),
        ({"max_tokens": 1.5}, TypeError, "takes an int"),
        ({"max_tokens": True}, TypeError, "takes an int"),
        ({"min_tokens": 5, "max_tokens": 4}, pt.ArgumentError, "above max_tokens"),
        ({"max_tokens": 1, "max_new_tokens": 1}, TypeError, "one thing"),
        ({"n": 0}, pt.ArgumentError, "n is at least 1"),
        ({"n": 3, "best_of": 2}, pt.ArgumentError, "below n=3"),
        ({"best_of": 0}, pt.ArgumentError, "best_of is at least 1"),
        ({"stop_regex": [""]}, pt.ArgumentError, "empty string"),
        ({"stop_regex": ["a", "b("]}, pt.ConstraintError, r"stop_regex 'b\(': not a valid regex"),
        ({"stop_regex": "a*"}, pt.ConstraintError, "matches the empty text"),
        ({"stop_regex": r"\p{L}"}, pt.ConstraintError, "give the ranges"),
        ({"token_healing": 1}, TypeError, "token_healing= takes True or False"),
        ({"choices": ["a"], "choices_method": "probability", "token_healing": True}, TypeError, "token_healing="),
        ({"logprob_token_ids": 3}, TypeError, "list of token ids"),
        ({"echo": True}, TypeError, "state.text"),
        ({"prompt_logprobs": 1}, TypeError, "engine.generate"),
        ({"logprobs_start": 1}, TypeError, "engine.generate"),
        ({"temperature": -0.1}, pt.ArgumentError, "temperature is at least 0"),
        ({"temperature": float("nan")}, pt.ArgumentError, "out of range"),
        ({"temperature": "hot"}, TypeError, "takes a number"),
        ({"top_p": 0}, pt.ArgumentError, "above 0 and at most 1"),
        ({"top_p": 1.1}, pt.ArgumentError, "top_p=1.1"),
        ({"top_k": 0}, pt.ArgumentError, "leaves no token"),
        ({"min_p": 2}, pt.ArgumentError, "min_p"),
        ({"repetition_penalty": 0}, pt.ArgumentError, "repetition_penalty"),
        ({"stop": ["a", ""]}, pt.ArgumentError, "empty string"),
        ({"stop": 3}, TypeError, "list of str"),
        ({"stop_token_ids": ["a"]}, TypeError, "takes an int"),
        ({"stop_token_ids": 3}, TypeError, "list of token ids"),
        ({"logit_bias": [1]}, TypeError, "dict of token id"),
        ({"logprobs": -1}, pt.ArgumentError, "logprobs"),
        ({"logprobs": 2, "return_logprob": True}, TypeError, "one of them"),
        ({"return_logprob": False, "top_logprobs_num": 2}, TypeError, "contradicts"),
        ({"ignore_eos": 1}, TypeError, "True or False"),
        ({"regex": "a", "json_schema": {}}, TypeError, "regex= and json_schema="),
        ({"type": int, "dtype": int}, TypeError, "one thing"),
        ({"type": "integer"}, TypeError, "names no type"),
        ({"type": 3}, TypeError, "no JSON schema"),
        ({"regex": "a("}, pt.ConstraintError, "malformed"),
        ({"regex": 3}, TypeError, "takes a str"),
        ({"choices": []}, pt.ConstraintError, "choices is empty"),
        ({"choices": "ab"}, TypeError, "list of str"),
        ({"choices": [1]}, TypeError, "list of str"),
        ({"json_schema": "{"}, pt.ConstraintError, "no JSON"),
        ({"json_schema": [1]}, TypeError, "dict or JSON text"),
        ({"json_schema": int}, TypeError, "for a class use type="),
        ({"json_schema": {"enum": [object()]}}, pt.ConstraintError, "cannot be written"),
        ({"grammar": "  "}, pt.ConstraintError, "empty"),
        ({"whitespace": True}, TypeError, "is for JSON"),
        ({"choices_method": "probability"}, TypeError, "needs choices="),
    ],
)
def test_a_wrong_argument_is_refused_at_the_call(arguments, error, words):
    with pytest.raises(error, match=words):
        pt.gen("x", **arguments)


def test_the_name_comes_first():
    for call in (pt.gen, pt.select):
        with pytest.raises(TypeError, match="name first"):
            call(["a", "b"])


def test_a_regex_error_points_at_its_character():
    with pytest.raises(pt.ConstraintError) as caught:
        pt.gen("x", regex="ab[c")
    assert caught.value.pointer == "@2" and caught.value.hint


def test_constraints_become_plain_data():
    assert pt.gen("x", regex="").constraint.spec == ""
    assert pt.gen("x", choices=["b", "a", "b"]).constraint.spec == ("b", "a")
    schema = {"type": "object", "properties": {"z": {}, "ä": {}}}
    for given in (schema, json.dumps(schema)):
        spec = pt.gen("x", json_schema=given, whitespace=True).constraint
        assert spec.spec == '{"type":"object","properties":{"z":{},"ä":{}}}' and spec.whitespace


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, TypeError, "needs choices"),
        ({"choices": []}, pt.ConstraintError, "empty"),
        ({"choices": ["a", "b", "a"]}, pt.ConstraintError, "'a' occurs twice"),
        ({"choices": ["a"], "method": "mean"}, TypeError, "unknown"),
        ({"choices": ["a"], "temperature": -1}, pt.ArgumentError, "temperature"),
        ({"choices": [1]}, TypeError, "list of str"),
        ({"choices": "yes"}, TypeError, "list of str"),
        ({"choices": ["a", "\ud800"]}, pt.ConstraintError, "surrogate"),
        ({"choices": ["a"], "metod": "probability"}, TypeError, "did you mean 'method'"),
    ],
)
def test_select_refuses_too(arguments, error, words):
    with pytest.raises(error, match=words):
        pt.select("x", **arguments)


def test_expressions_add_up_flat():
    a, b = pt.gen("a"), pt.gen("b")
    assert "x" + a + ["y", (b,)] + "" == Sequence((Text("x"), a, Text("y"), b))
    assert [1, 2][:0] + a == Sequence((a,))
    assert pt.user("x" + a) == Sequence((RoleBegin("user"), Text("x"), a, RoleEnd("user")))
    assert pt.special("<s>") == Text("<s>", trusted=True)
    with pytest.raises(TypeError, match="cannot append int 3"):
        _ = a + 3


def test_more_that_gen_refuses():
    with pytest.raises(TypeError, match="return_logprob"):
        pt.gen("x", return_logprob="yes")
    with pytest.raises(pt.ArgumentError, match="surrogate"):
        pt.gen("x", stop="\ud800")
    schema = {}
    for _ in range(3000):
        schema = {"items": schema}
    with pytest.raises(pt.ConstraintError, match="cannot be written as JSON"):
        pt.gen("x", json_schema=schema)


@pytest.mark.parametrize(
    ("pattern", "at"),
    [("^a", 0), ("ab$", 2), (r"a\b", 1), ("a(?=b)", 1), ("a(?!b)", 1), ("(?<=b)a", 0), ("(?<!b)a", 0), (r"(a)\1", 3)],
)
def test_a_stop_pattern_that_looks_around_is_refused_where_it_stands(pattern, at):
    for call in (pt.gen, pt.function):
        with pytest.raises(pt.ConstraintError, match="still being written") as caught:
            call(stop_regex=["x", pattern]) if call is pt.gen else pt.function(lambda s: None, stop_regex=pattern)
        assert caught.value.pointer == f"@{at}" and repr(pattern) in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    "pattern",
    [r"\$\^", "[$^]+", r"[\b]x", r"[]^$]a", r"[^\]^$]b", r"\101", "(?#$)a", "(?x)a # $", "(?P<n>a)b", "(?u)é+"],
)
def test_a_stop_pattern_that_only_looks_so_is_taken(pattern):
    assert pt.gen("x", stop_regex=pattern).sampling.stop_regex == (pattern,)
