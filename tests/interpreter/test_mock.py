"""The scripted backend itself."""

from __future__ import annotations

import pytest

import palmette as pt
from palmette.testing import MockBackend, MockCodec

pytestmark = pytest.mark.timeout(20)


def run(node, backend):
    @pt.function
    def program(s):
        s += "Say: "
        s += node

    return program.run(backend=backend)


def test_answers_end_at_the_first_stop_string_and_at_the_limit():
    state = run(pt.gen("x", stop=["END", "\n"]), MockBackend({"x": "one\ntwo END"}))
    assert (state["x"], state.result("x").matched_stop, state.result("x").finish_reason) == ("one", "\n", "stop")
    cut = run(pt.gen("x", max_tokens=2), MockBackend({"x": "one two three"})).result("x")
    assert (cut.text, cut.finish_reason, cut.completion_tokens) == ("one two", "length", 2)
    pattern = run(pt.gen("x", stop_regex=["t+wo", "[A-Z]"], stop="o E"), MockBackend({"x": "one\ntwo END"}))
    assert (pattern["x"], pattern.result("x").matched_stop) == ("one\n", "t+wo")
    nothing = run(pt.gen("x", max_tokens=0), MockBackend({"x": "one"})).result("x")
    assert (nothing.text, nothing.finish_reason) == ("", "length")


@pytest.mark.parametrize(
    ("node", "good", "bad"),
    [
        (pt.gen("x", regex="[0-9]{3}"), "123", "12a"),
        (pt.gen("x", choices=["a", "b"]), "b", "c"),
        (pt.gen("x", json_schema={"type": "integer"}), "7", '"7"'),
        (pt.select("x", ["yes", "no"]), "no", "maybe"),
    ],
)
def test_a_scripted_answer_that_breaks_its_constraint_is_an_error(node, good, bad):
    assert run(node, MockBackend({"x": good}))["x"] == good
    with pytest.raises(pt.BackendError, match="the mock's answer"):
        run(node, MockBackend({"x": bad}))["x"]


def test_of_best_of_answers_the_first_n_are_kept():
    backend = MockBackend({"x": ["one", "two three", "four"]})
    state = run(pt.gen("x", n=2, best_of=3), backend)
    assert state["x"] == ["one", "two three"]
    assert [result.discarded_tokens for result in state.result("x")] == [1, 0]
    assert state.trace[-1].tokens == 5
    assert run(pt.gen("x", best_of=3), MockBackend({"x": ["one", "two", "three"]}))["x"] == "one"


def test_lists_functions_and_defaults():
    backend = MockBackend({"x": ["1", lambda prompt: prompt.upper()]}, default="d")
    assert run(pt.gen("x") + "-" + pt.gen("x") + pt.gen("other"), backend).text() == "Say: 1-SAY: 1-d"
    with pytest.raises(pt.BackendError, match="asked once more"):
        run(pt.gen("x"), backend)["x"]
    assert run(pt.gen("c", choices=["b", "a"]), MockBackend())["c"] == "b"
    assert run(pt.select("c", ["b", "a"]), MockBackend(default="text"))["c"] == "b"


@pytest.mark.parametrize(
    "method",
    [
        "probability",
        "token_length_normalized",
        "greedy_token_selection",
        "unconditional_likelihood_normalized",
    ],
)
def test_a_scripted_choice_is_the_answer_by_every_method(method):
    labels = ["Billing", "Billing - refund of the whole sum", "Login"]
    state = run(pt.select("label", labels, method=method), MockBackend({"label": "Login"}))
    assert state["label"] == "Login"
    assert max(labels, key=state.result("label").probabilities.__getitem__) == "Login"


def test_text_tokenises_otherwise_in_two_parts_than_as_a_whole():
    codec = MockCodec()
    assert codec.encode("ab") + codec.encode("cd") != codec.encode("abcd")
    assert codec.encode("") == []
    text = "any text, über all <|im_end|>\n\x00"
    assert codec.decode(codec.encode(text)) == text


def test_logprobs_are_given_where_asked_for():
    plain = run(pt.gen("x"), MockBackend(default="a b"))
    assert plain.result("x").logprobs is None
    asked = run(pt.gen("x", logprobs=1), MockBackend(default="a b")).result("x")
    assert len(asked.logprobs) == len(asked.tokens) == 2
    assert len(asked.logprobs[0].top) == 1


@pytest.mark.parametrize("stop", [{"stop": "ab"}, {"stop_regex": "a+b"}, {"stop": ["zz", "ab"], "stop_regex": "q"}])
def test_no_stop_counts_within_min_tokens(stop):
    # Three tokens of four letters at most: "ab", " xab", " ab".
    backend = MockBackend(default="ab xab ab")
    assert backend.codec.decode(backend.codec.encode("ab xab ab")[:2]) == "ab xab"
    texts = [run(pt.gen("x", min_tokens=least, **stop), backend)["x"] for least in range(4)]
    assert texts == ["", "ab x", "ab xab ", "ab xab ab"]


def test_an_answer_shorter_than_min_tokens_is_an_error():
    assert run(pt.gen("x", min_tokens=2), MockBackend(default="a b"))["x"] == "a b"
    with pytest.raises(pt.BackendError, match="'a b' for 'x' has 2 tokens of min_tokens=3"):
        run(pt.gen("x", min_tokens=3), MockBackend(default="a b"))["x"]
    # What the constraint makes complete may be shorter.
    assert run(pt.gen("x", min_tokens=3, regex="a b"), MockBackend(default="a b"))["x"] == "a b"


@pytest.mark.parametrize("pattern", ["(", "a*", "^a", "(?L)a"])
def test_an_odd_stop_pattern_is_told_as_one(pattern):
    import asyncio

    from palmette.runtime.protocol import Failed, GenerateRequest, SamplingParams

    async def ask():
        request = GenerateRequest((1,), SamplingParams(stop_regex=(pattern,)))
        return [event async for event in MockBackend(default="text").submit(request)]

    (event,) = asyncio.run(ask())
    assert isinstance(event, Failed) and isinstance(event.error, pt.ConstraintError)
    assert repr(pattern) in str(event.error)


def test_patterns_with_unicode_flags_are_searched():
    state = run(pt.gen("x", stop_regex="(?iu)É+"), MockBackend(default="ab éÉ"))
    assert state["x"] == "ab "
    assert run(pt.gen("x", regex="(?iu)é+"), MockBackend(default="éÉ"))["x"] == "éÉ"
