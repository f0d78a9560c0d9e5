"""@function: signatures, binding, and which keyword goes where."""

from __future__ import annotations

import inspect

import pytest

import palmette as pt
from palmette.testing import MockBackend

MOCK = MockBackend(default="v")


@pt.function
def program(state, topic, *, tone="dry"):
    """Says something."""
    state += f"{topic} {tone} "
    state += pt.gen("x")


def test_it_looks_like_its_body():
    assert program.__name__ == "program" and program.__doc__ == "Says something."
    assert list(inspect.signature(program).parameters) == ["state", "topic", "tone"]
    assert {program: 1}[program] == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'topic'"),
        (("a", "b"), {}, "too many positional"),
        (("a",), {"topic": "b"}, "multiple values for argument 'topic'"),
        (("a",), {"ton": "b"}, "did you mean 'tone'"),
        (("a",), {"temprature": 1}, "did you mean 'temperature'"),
        (("a",), {"backnd": 1}, "no keyword 'backnd'"),
        (("a",), {"stream": True}, "no keyword 'stream'"),
    ],
)
def test_wrong_arguments_are_type_errors_at_once(args, kwargs, words):
    MOCK.requests.clear()
    for start in (program.run, program.stream, program.astream):
        with pytest.raises(TypeError, match=words):
            start(*args, backend=MOCK, **kwargs)
    assert MOCK.requests == []


def test_wrong_sampling_settings_are_refused_too():
    with pytest.raises(pt.ArgumentError, match=r"program\.run\(\).*top_p"):
        program.run("a", backend=MOCK, top_p=2)


def test_a_parameter_of_the_body_hides_a_setting_of_the_run():
    @pt.function
    def own(s, temperature, backend=None):
        s += f"{temperature}{backend}" + pt.gen("x")

    pt.set_default_backend(MOCK)
    try:
        MOCK.requests.clear()
        assert own.run(temperature=30, backend="none").text() == "30nonev"
        assert MOCK.requests[0].params.temperature == 1.0
    finally:
        pt.set_default_backend(None)


def test_keywords_of_a_body_that_takes_any_reach_it():
    @pt.function
    def loose(s, **rest):
        s["rest"] = rest

    assert loose.run(backend=MOCK, anything=1, temperature=0)["rest"] == {"anything": 1}


def test_bind_gives_arguments_ahead():
    bound = program.bind(topic="tea").bind(tone="wry")
    assert bound.run(backend=MOCK).text() == "tea wry v"
    assert bound.run("milk", tone="sad", backend=MOCK).text() == "milk sad v"
    assert program.run("x", backend=MOCK).text() == "x dry v"
    with pytest.raises(TypeError, match="did you mean 'topic'"):
        program.bind(topc="tea")


def test_a_state_parameter_is_needed():
    for body in (lambda: None, lambda *, s: None):
        with pytest.raises(TypeError, match="first parameter for the state"):
            pt.function(body)
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        pt.function(temperatur=1)

    def generator(s):
        yield s

    async def async_generator(s):
        yield s

    for body in (generator, async_generator):
        with pytest.raises(TypeError, match="yield"):
            pt.function(body)
    with pytest.raises(TypeError, match="decorates a function"):
        pt.function(3)


def test_defaults_of_the_decorator_give_way_to_the_run_and_the_gen():
    backend = MockBackend(default="v")

    @pt.function(max_tokens=5, temperature=0.1)
    def short(s):
        s += pt.gen("x") + pt.gen("y", max_tokens=2)

    short.run(backend=backend, max_new_tokens=3)
    assert [(r.params.max_tokens, r.params.temperature) for r in backend.requests] == [(3, 0.1), (2, 0.1)]
