"""Each fault of SGLang's front end that PITFALLS.md lists, by its row: palmette must not have it."""

from __future__ import annotations

import math

import pytest

import palmette as pt
from palmette.testing import MockBackend, Partial

pytestmark = pytest.mark.timeout(20)


class Broken(Exception):
    """What a scripted backend fails by."""


@pt.function
def two_gens(s):
    s += "Q: "
    s += pt.gen("a")
    s += " then "
    s += pt.gen("b")


def failing(error):
    return MockBackend({"a": error, "b": "never"})


def test_row_01_a_read_raises_the_backends_own_error():
    error = Broken("no power")
    state = two_gens.run(backend=failing(error))
    with pytest.raises(Broken) as caught:
        state["a"]
    assert caught.value is error
    assert any("in program 'two_gens'" in note and "test_reported_errors.py" in note for note in error.__notes__)
    assert any('s += pt.gen("a")' in note for note in error.__notes__)
    assert state.error is error


def test_row_02_text_of_a_failed_state_raises_instead_of_looking_complete():
    error = Broken()
    state = two_gens.run(backend=failing(error))
    for read in (state.text, state.messages, state.tokens, state.sync, lambda: state.results, lambda: "a" in state):
        with pytest.raises(Broken) as caught:
            read()
        assert caught.value is error


def test_row_03_appending_after_an_error_does_not_hang():
    error = Broken()

    @pt.function
    def program(s):
        s += pt.gen("a")
        s += " more "
        s += pt.gen("b")
        with pytest.raises(Broken):
            s["b"]
        s += pt.gen("c")
        with pytest.raises(Broken):
            s["c"]
        with s.fork(2) as branches:
            branches += pt.gen("d")
        with pytest.raises(Broken):
            s["d"]
        with pytest.raises(Broken):
            branches[0]["d"]

    backend = failing(error)
    program.run(backend=backend)
    assert len(backend.requests) == 1


def test_row_04_a_batch_with_an_error_ends():
    error = Broken()
    backend = MockBackend({"a": lambda prompt: error if "1" in prompt else "fine"})

    @pt.function
    def program(s, i):
        s += f"{i}:"
        s += pt.gen("a")
        s += "more"
        s.sync()

    states = program.run_batch([{"i": i} for i in range(3)], backend=backend, on_error="keep")
    assert [state.error for state in states] == [None, error, None]
    with pytest.raises(Broken) as caught:
        program.run_batch([{"i": i} for i in range(3)], backend=backend)
    assert caught.value is error
    assert "in item 1 of program.run_batch" in error.__notes__


def test_row_05_join_keeps_alignment_with_a_hole():
    @pt.function
    def program(s):
        with s.fork(3) as branches:
            for i, branch in enumerate(branches):
                branch += f"{i}"
                if i != 1:
                    branch += pt.gen("x")

    state = program.run(backend=MockBackend(default=lambda prompt: f"<{prompt[-1]}>"))
    assert state["x"] == ["<0>", None, "<2>"]


def test_row_06_overwriting_a_parents_variable_is_an_error_that_names_it():
    @pt.function
    def program(s):
        s += pt.gen("x")
        with s.fork(2) as branches:
            branches[1] += pt.gen("x")

    state = program.run(backend=MockBackend(default="v"))
    with pytest.raises(pt.BranchConflict, match="branch 1 set 'x'"):
        state["x"]


def test_row_07_gen_with_choices_honours_the_rest_or_refuses_it():
    @pt.function
    def program(s):
        s += pt.gen("x", choices=["a", "b"], max_tokens=7, n=2, return_logprob=True, temperature=0.5)

    backend = MockBackend({"x": ["b", "a"]})
    state = program.run(backend=backend)
    (request,) = backend.requests
    assert request.constraint.kind == "choices" and request.constraint.spec == ("a", "b")
    assert (request.params.max_tokens, request.params.n, request.params.logprobs) == (7, 2, 0)
    assert request.params.temperature == 0.5
    assert state["x"] == ["b", "a"]
    with pytest.raises(TypeError, match="regex= and choices="):
        pt.gen("x", choices=["a"], regex="a")
    with pytest.raises(TypeError, match="max_tokens="):
        pt.gen("x", choices=["a"], choices_method="token_length_normalized", max_tokens=3)


def test_row_08_bind_keeps_the_functions_settings():
    @pt.function(temperature=0.25, max_tokens=3)
    def program(s, topic, tone="dry"):
        s += topic + tone
        s += pt.gen("x")

    backend = MockBackend(default="v")
    bound = program.bind(topic="tea ")
    bound.run(backend=backend)
    bound.bind(tone="wry").run(backend=backend, temperature=0.5)
    assert [(r.params.temperature, r.params.max_tokens) for r in backend.requests] == [(0.25, 3), (0.5, 3)]
    assert [backend.codec.decode(r.tokens) for r in backend.requests] == ["tea dry", "tea wry"]
    with pytest.raises(pt.CapabilityError, match="num_api_spec_tokens"):
        pt.function(num_api_spec_tokens=16)


def test_row_09_a_tuple_of_stops_works_with_a_chat_template():
    @pt.function
    def program(s):
        s += pt.user("hi")
        s += pt.assistant(pt.gen("x", stop=("!", "?")))

    backend = MockBackend({"x": "well? yes!"})
    state = program.run(backend=backend)
    assert state["x"] == "well"
    assert state.result("x").matched_stop == "?"
    (request,) = backend.requests
    assert request.params.stop == ("!", "?")
    assert request.params.stop_token_ids == (backend.codec.end_token("<|im_end|>"),)


def test_row_10_unnamed_gens_do_not_collide():
    @pt.function
    def program(s):
        s += pt.gen() + "," + pt.gen()

    state = program.run(backend=MockBackend(default=["one", "two"]))
    assert state.text() == "one,two"
    assert [result.text for result in state.results] == ["one", "two"]
    assert state.variables == {}


def test_row_11_a_batch_runs_each_body_exactly_once():
    ran = []

    @pt.function
    def program(s, i):
        ran.append(i)
        s += "the same long beginning " * 10 + str(i)
        s += pt.gen("x")

    program.run_batch([{"i": i} for i in range(5)], backend=MockBackend(default="v"))
    assert sorted(ran) == [0, 1, 2, 3, 4]


def test_row_12_a_body_may_look_its_arguments_up():
    table = {"a": "apple", "b": "banana"}

    @pt.function
    def program(s, key):
        s += table[key]

    states = program.run_batch([{"key": "a"}, {"key": "b"}], backend=MockBackend())
    assert [state.text() for state in states] == ["apple", "banana"]


def test_row_13_a_prefix_from_an_argument_is_shared_like_any_other():
    @pt.function
    def program(s, topic, question):
        s += f"All about {topic}. " * 20
        s += question
        s += pt.gen("x")
        s += " And?"
        s += pt.gen("y")

    backend = MockBackend(default="v")
    program.run_batch([("tea", "Who?"), ("tea", "When?")], backend=backend)
    first, second = ([r.tokens for r in backend.requests if r.name == name] for name in ("x", "y"))
    shared = backend.codec.encode("All about tea. " * 20)
    assert all(list(tokens[: len(shared) - 1]) == shared[:-1] for tokens in first + second)
    # And each prompt of a program extends the one before it, token for token.
    for short, long in zip(sorted(first), sorted(second), strict=True):
        assert long[: len(short)] == short


def test_row_14_an_exception_of_the_body_comes_out_of_the_stream():
    error = Broken("the body's own")

    @pt.function
    def program(s):
        s += "before"
        s["nothing"] if False else s.sync()
        raise error

    events = []
    with pytest.raises(Broken) as caught:
        for event in program.stream(backend=MockBackend()):
            events.append(event)
    assert caught.value is error
    assert events == [pt.TextEvent("before"), pt.ErrorEvent(error)]


def test_row_15_a_backend_error_in_mid_stream_comes_out_of_the_stream():
    error = Broken("cable cut")
    stream = two_gens.stream(backend=MockBackend({"a": Partial("half an", error)}))
    events = []
    with pytest.raises(Broken) as caught:
        for event in stream:
            events.append(event)
    assert caught.value is error
    assert "".join(event.text for event in events[:-1]) == "Q: half an"
    assert events[-1] == pt.ErrorEvent(error)
    with pytest.raises(StopIteration):
        next(stream)


def test_row_16_meta_info_survives_the_join():
    @pt.function
    def program(s):
        with s.fork(3) as branches:
            branches[0] += pt.gen("x", logprobs=0)
            branches[2] += pt.gen("x", max_tokens=1)

    state = program.run(backend=MockBackend({"x": "several words"}))
    first, hole, last = state.result("x")
    assert first.text == "several words" and len(first.logprobs) == len(first.tokens)
    assert hole is None
    assert last.finish_reason == "length" and last.completion_tokens == 1
    assert [meta and meta["finish_reason"] for meta in state.get_meta_info("x")] == ["stop", None, "length"]


def test_row_17_defaults_of_the_run_leave_constraint_and_type_alone():
    @pt.function
    def program(s):
        s += pt.gen("r", regex="[a-c]+") + pt.gen("n", dtype=int)

    backend = MockBackend({"r": "abc", "n": "42"})
    state = program.run(backend=backend, temperature=0, top_p=0.5, max_new_tokens=9)
    regex, number = backend.requests
    assert (regex.constraint.kind, regex.constraint.spec) == ("regex", "[a-c]+")
    assert number.constraint.kind == "regex"
    assert {(r.params.temperature, r.params.top_p, r.params.max_tokens) for r in backend.requests} == {(0, 0.5, 9)}
    assert state.value("n") == 42


@pt.function
def chooser(s):
    s += pt.select("x", ["one", "two"], choices_method="token_length_normalized")


def test_row_18_zero_logprobs_count_in_the_mean():
    state = chooser.run(backend=MockBackend({"x": {"one": [-2, 0, 0, 0], "two": [-1.0]}}))
    assert state["x"] == "one"
    assert dict(state.result("x").scores.items()) == {"one": -0.5, "two": -1.0}


def test_row_19_logprobs_that_are_all_zero_divide_nothing():
    state = chooser.run(backend=MockBackend({"x": {"one": [0, 0], "two": [0]}}))
    result = state.result("x")
    assert dict(result.scores.items()) == {"one": 0.0, "two": 0.0}
    assert math.isclose(sum(result.probabilities.values()), 1.0)
