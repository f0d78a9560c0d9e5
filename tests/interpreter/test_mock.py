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
