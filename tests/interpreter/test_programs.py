"""What programs do when all goes well: text, roles, variables, nesting, results."""

from __future__ import annotations

import dataclasses

import pytest

import palmette as pt
from palmette.runtime.protocol import Capabilities
from palmette.testing import MockBackend, MockCodec

pytestmark = pytest.mark.timeout(20)


def prompts(backend):
    return [backend.codec.decode(request.tokens) for request in backend.requests]


def test_text_variables_and_prompts_follow_the_appends():
    @pt.function
    def program(s, a):
        s += "1 " + pt.gen("x")
        s += [" 2 ", pt.gen("y"), (" 3",)]
        s += f" {s['x']}{a}"

    backend = MockBackend({"x": "X", "y": "Y"})
    state = program.run("!", backend=backend)
    assert state.text() == "1 X 2 Y 3 X!"
    assert (state["x"], state["y"]) == ("X", "Y")
    assert prompts(backend) == ["1 ", "1 X 2 "]
    assert "x" in state and "z" not in state
    assert state.error is None


def test_the_readme_program_runs():
    @pt.function
    def qa(s, topic):
        s += pt.system("You are terse.")
        s += pt.user(f"Name a {topic}.")
        s += pt.assistant(pt.gen("answer", max_tokens=16, stop="\n"))
        with s.fork(2) as branches:
            for i, b in enumerate(branches):
                b += pt.user(["Why?", "Sure?"][i])
                b += pt.assistant(pt.gen("why", max_tokens=24, temperature=0.7, seed=i))
        s += pt.user(f"So: {s['why']}")

    backend = MockBackend({"answer": "apple\nno", "why": lambda prompt: "taste" if "Why?" in prompt else "yes"})
    state = qa.run(topic="fruit", backend=backend)
    assert state["answer"] == "apple"
    assert state["why"] == ["taste", "yes"]
    assert state.messages() == [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Name a fruit."},
        {"role": "assistant", "content": "apple"},
        {"role": "user", "content": "So: ['taste', 'yes']"},
    ]
    assert sorted(request.params.seed for request in backend.requests[1:]) == [0, 1]
    # No token of any prompt was tokenised twice: branches extend the parent's prompt.
    parent = backend.requests[0].tokens
    assert all(request.tokens[: len(parent)] == parent for request in backend.requests[1:])


def test_a_users_text_never_becomes_a_control_token():
    @pt.function
    def program(s):
        s += "<|im_end|>" + pt.gen("x")
        s += pt.special("<|im_end|>") + pt.gen("y")

    backend = MockBackend(default="v")
    program.run(backend=backend)
    end = backend.codec.end_token("<|im_end|>")
    assert [end in request.tokens for request in backend.requests] == [False, True]


def test_role_blocks_end_even_when_their_body_raises():
    @pt.function
    def program(s):
        try:
            with s.user():
                s += "half"
                raise ValueError
        except ValueError:
            pass
        with s.assistant():
            s += pt.gen("x")
        s.user("whole")

    state = program.run(backend=MockBackend({"x": "v"}))
    assert [m["role"] for m in state.messages()] == ["user", "assistant", "user"]
    assert state.text().count("<|im_end|>") == 3


def test_nested_and_unopened_roles_are_refused_where_they_stand():
    @pt.function
    def nested(s):
        s += pt.user(["a", pt.assistant("b")])

    @pt.function
    def unopened(s):
        s += pt.assistant_end()

    with pytest.raises(pt.PalmetteError, match="assistant message begins inside a user message"):
        nested.run(backend=MockBackend())
    with pytest.raises(pt.PalmetteError, match="outside of any message"):
        unopened.run(backend=MockBackend())


class Trimming(MockCodec):
    def chat_trims(self, role):
        return role == "user"


def test_literal_messages_are_stripped_where_the_template_does_so():
    @pt.function
    def program(s):
        s += pt.user(["  ", " hi ", "\n"])
        s += pt.assistant("  kept ")
        s += pt.user(["  led ", pt.gen("x"), " "])

    state = program.run(backend=MockBackend({"x": "v"}, codec=Trimming()))
    assert [m["content"] for m in state.messages()] == ["hi", "  kept ", "  led v "]
    assert "user\nhi<|im_end|>" in state.text()


def test_var_scope_takes_all_text_inside():
    @pt.function
    def program(s):
        s += "out "
        with s.var_scope("outer"):
            s += "a"
            with s.var_scope("inner"):
                s += pt.gen("x")
            s += "b"
        s += " out"

    state = program.run(backend=MockBackend({"x": "v"}))
    assert (state["outer"], state["inner"]) == ("avb", "v")


def test_nested_programs_run_in_line_and_return_what_their_body_returns():
    @pt.function
    def inner(s, word, *, mark="?"):
        s += word + mark
        s += pt.gen("x")
        return s["x"] + "!"

    @pt.function
    def outer(s):
        s += inner(s, "hm", mark=" ")
        return inner

    state = outer.run(backend=MockBackend({"x": "v"}))
    assert state.text() == "hm vv!"
    assert state.ret_value is inner
    with pytest.raises(TypeError, match=r"inner\.run"):
        inner("word")


def test_variables_may_be_set_by_hand():
    @pt.function
    def program(s):
        s["x"] = [1, 2]
        s.set_var("y", None)

    state = program.run(backend=MockBackend())
    assert state["x"] == [1, 2] and state["y"] is None
    with pytest.raises(pt.PalmetteError, match="was not generated"):
        state.result("x")


def test_an_unknown_variable_is_a_key_error_with_a_suggestion():
    @pt.function
    def program(s):
        s += pt.gen("answer")

    state = program.run(backend=MockBackend())
    with pytest.raises(pt.UnknownVariable, match="did you mean 'answer'") as caught:
        state["anwser"]
    assert isinstance(caught.value, KeyError)


def test_a_variable_generated_twice_reads_as_of_the_place():
    @pt.function
    def program(s):
        s += pt.gen("x")
        first = s["x"]
        s += pt.gen("x")
        s["both"] = (first, s["x"])

    assert program.run(backend=MockBackend({"x": ["1", "2"]}))["both"] == ("1", "2")


def test_several_samples_are_a_list_and_the_first_goes_on():
    @pt.function
    def program(s):
        s += pt.gen("x", n=3) + "." + pt.gen("y")

    backend = MockBackend({"x": ["a", "b", "c"], "y": "d"})
    state = program.run(backend=backend)
    assert state["x"] == ["a", "b", "c"] and state["y"] == "d"
    assert [result.text for result in state.result("x")] == ["a", "b", "c"]
    assert state.text() == "a.d"
    assert prompts(backend)[1] == "a."


@dataclasses.dataclass
class Point:
    x: int
    y: int


def test_typed_values_and_truncation():
    @pt.function
    def program(s, limit):
        s += pt.gen("point", type=Point, max_tokens=limit)
        s += pt.gen("data", json_schema={"type": "array"})

    backend = MockBackend({"point": '{"x":1,"y":2}', "data": "[1]"})
    state = program.run(99, backend=backend)
    assert state.value("point") == Point(1, 2)
    assert state.result("point").value == Point(1, 2)
    assert state.value("data") == [1]
    cut = program.run(2, backend=backend)
    assert cut.get_meta_info("point")["finish_reason"] == "length"
    with pytest.raises(pt.TruncatedError, match="raise max_tokens"):
        cut.value("point")
    assert '{"x":1,"y":2}'.startswith(cut["point"])


def test_a_value_that_its_type_refuses_is_one_of_our_errors():
    @dataclasses.dataclass
    class Ordered:
        low: int
        high: int

        def __post_init__(self):
            if self.low > self.high:
                raise ValueError("low is above high")

    @pt.function
    def program(s):
        s += pt.gen("range", type=Ordered)

    state = program.run(backend=MockBackend({"range": '{"low":3,"high":2}'}))
    with pytest.raises(pt.PalmetteError, match=r"(?s)'range' is complete, but .*low is above high") as caught:
        state.value("range")
    assert caught.value.hint and not isinstance(caught.value, pt.TruncatedError)
    assert state["range"] == '{"low":3,"high":2}'


def test_select_appends_its_choice_and_tells_its_distribution():
    @pt.function
    def program(s):
        s += "Is it?"
        s += pt.select("x", [" yes", " no"])
        s += pt.gen("y")

    backend = MockBackend({"x": " no", "y": "."})
    state = program.run(backend=backend)
    result = state.result("x")
    assert result.choice == state["x"] == " no"
    assert result.probabilities[" no"] > result.probabilities[" yes"]
    assert {option: "".join(text for text, _ in tokens) for option, tokens in result.option_tokens.items()} == {
        " yes": " yes",
        " no": " no",
    }
    assert prompts(backend)[1] == "Is it? no"


def test_a_healed_boundary_replaces_the_prompts_last_tokens():
    from palmette.runtime.protocol import ScoreResult, Usage

    class Healing(MockBackend):
        async def score_async(self, request):
            self.requests.append(request)
            spelt = [tuple(self.codec.encode("ab" + choice)) for choice in request.choices]
            ones = (0.0,) * len(spelt)
            rows = tuple((0.0,) * len(tokens) for tokens in spelt)
            return ScoreResult(
                1,
                request.choices[1],
                (0.5, 0.5),
                ones,
                ones,
                1.0,
                tuple(spelt),
                rows,
                request.method,
                Usage(),
                healed=1,
            )

    @pt.function
    def program(s):
        s += "x ab"
        s += pt.select("c", ["c", "d"])
        s += pt.gen("y")

    backend = Healing({"y": "."})
    backend.codec.encode("x")
    state = program.run(backend=backend)
    score, generate = backend.requests
    assert generate.tokens[: len(score.tokens) - 1] == score.tokens[:-1]
    assert backend.codec.decode(generate.tokens).endswith("abd")
    assert state.text() == "x abd."


def test_the_trace_tells_each_step():
    @pt.function
    def program(s):
        s += "ask "
        s += pt.gen("x")
        s += pt.select("y", ["a", "b"])
        with s.fork(2) as branches:
            branches += pt.gen("z")

    state = program.run(backend=MockBackend(default="v"))
    assert [(step.kind, step.name, step.text) for step in state.trace] == [
        ("literal", None, "ask "),
        ("gen", "x", "v"),
        ("select", "y", "a"),
        ("fork", None, ""),
        ("join", None, ""),
    ]
    assert all("test_programs.py" in step.where for step in state.trace)


def test_what_the_backend_lacks_is_refused_where_it_is_asked_for():
    from palmette.runtime.protocol import Capabilities

    lacking = Capabilities(
        "tin",
        constraints=frozenset({"regex"}),
        score=False,
        logprobs=False,
        params=frozenset({"max_tokens", "logprobs"}),
    )
    asks = {
        "min_p": pt.gen("x", min_p=0.1),
        "logprobs": pt.gen("x", logprobs=1),
        "json_schema": pt.gen("x", json_schema={}),
        "type=bool": pt.gen("x", type=bool),
        "select": pt.select("x", ["a"]),
    }
    for feature, ask in asks.items():
        backend = MockBackend(capabilities=lacking)

        @pt.function
        def program(s, ask=ask):
            s += "text"
            s += ask

        with pytest.raises(pt.CapabilityError, match=feature) as caught:
            program.run(backend=backend)
        assert "'tin'" in str(caught.value)
        assert backend.requests == []


@pytest.mark.parametrize("setting", [{"logprob_token_ids": [1]}, {"token_healing": True}])
def test_what_the_runtime_lacks_is_refused_by_name(setting):
    @pt.function
    def program(s):
        s += pt.gen("x", **setting)

    with pytest.raises(pt.CapabilityError, match=next(iter(setting))):
        program.run(backend=MockBackend())


def test_appending_what_is_no_expression_says_so():
    @pt.function
    def program(s, thing):
        s += thing

    with pytest.raises(TypeError, match="returns nothing"):
        program.run(None, backend=MockBackend())
    with pytest.raises(TypeError, match="f-string"):
        program.run(3, backend=MockBackend())


def test_a_backend_is_needed_and_may_be_the_default():
    @pt.function
    def program(s):
        s += pt.gen("x")

    with pytest.raises(pt.PalmetteError, match="set_default_backend"):
        program.run()
    with pytest.raises(TypeError, match="no backend"):
        program.run(backend=object())
    pt.set_default_backend(MockBackend(default="d"))
    try:
        assert program.run()["x"] == "d"
        assert program.run(backend=MockBackend(default="e"))["x"] == "e"
    finally:
        pt.set_default_backend(None)


def test_a_template_that_refuses_fails_the_state_with_its_own_words():
    class Refusing(MockCodec):
        def chat_open(self, roles):
            raise pt.ModelError("no system role here")

    @pt.function
    def program(s):
        s += pt.system("x")

    state = program.run(backend=MockBackend(codec=Refusing()))
    with pytest.raises(pt.ModelError, match="no system role here"):
        state.text()


def test_a_backend_that_just_stops_is_an_error():
    class Silent(MockBackend):
        async def submit(self, request):
            return
            yield

    @pt.function
    def program(s):
        s += pt.gen("x")

    with pytest.raises(pt.BackendError, match="without a result"):
        program.run(backend=Silent())["x"]


def test_only_literal_text_may_be_spelled_anew_by_a_select():
    @pt.function
    def program(s):
        s += "x ab" + pt.gen("y") + pt.select("c", ["c", "d"])
        s += "lit" + pt.select("d", ["c", "d"])
        s += "e" + pt.gen("empty") + "f" + pt.select("e", ["c", "d"])

    backend = MockBackend({"y": "generated", "empty": ""})
    assert program.run(backend=backend).error is None
    scores = [request for request in backend.requests if hasattr(request, "choices")]
    lengths = [0, len(backend.codec.encode("lit")), len(backend.codec.encode("e")) + len(backend.codec.encode("f"))]
    assert [request.healable for request in scores] == lengths


def test_results_and_errors_survive_pickling():
    import pickle

    @pt.function
    def program(s):
        s += pt.gen("a", type=bool) + pt.gen("b", type=int) + pt.gen("c", json_schema={}) + pt.select("d", ["p", "q"])

    state = program.run(backend=MockBackend({"a": "True", "b": "5", "c": "[1]"}))
    for name, value in (("a", True), ("b", 5), ("c", [1]), ("d", state["d"])):
        twin = pickle.loads(pickle.dumps(state.result(name)))
        assert twin == state.result(name) and twin.value == value
    with pytest.raises(pt.UnknownVariable) as caught:
        state["e"]
    twin = pickle.loads(pickle.dumps(caught.value))
    assert (str(twin), twin.hint) == (str(caught.value), caught.value.hint)


def test_a_run_says_on_whose_account_it_goes():
    @pt.function
    def twice(s):
        s += "Say " + pt.gen("a", max_tokens=4)
        branches = s.fork(2)
        for branch in branches:
            branch += pt.select("b", choices=["x", "y"])
        branches.join()

    backend = MockBackend({"a": "hm", "b": "x"})
    twice.run(backend=backend, priority=3, tenant="ada", namespace="secret")
    assert len(backend.requests) == 3
    assert {(r.priority, r.tenant, r.namespace) for r in backend.requests} == {(3, "ada", "secret")}
    twice.run(backend=backend)
    assert backend.requests[-1].tenant == ""


@pytest.mark.parametrize(
    ("account", "problem"),
    [({"priority": "high"}, "priority"), ({"tenant": 3}, "tenant"), ({"namespace": None}, "namespace")],
)
def test_an_account_is_checked(account, problem):
    @pt.function
    def ask(s):
        s += pt.gen("a")

    with pytest.raises(TypeError, match=problem):
        ask.run(backend=MockBackend(), **account)
    with pytest.raises(TypeError, match="did you mean 'tenant'"):
        ask.run(backend=MockBackend(), tennant="ada")


def test_a_body_keeps_a_parameter_that_is_named_like_an_account():
    @pt.function
    def ask(s, tenant):
        s += f"{tenant}: " + pt.gen("a")

    backend = MockBackend({"a": "yes"})
    assert ask.run(tenant="Ada", backend=backend).text() == "Ada: yes"
    assert backend.requests[0].tenant == ""


def test_a_backend_that_knows_no_accounts_refuses_one():
    @pt.function
    def ask(s):
        s += pt.gen("a")

    plain = MockBackend({"a": "yes"}, capabilities=Capabilities("plain"))
    with pytest.raises(pt.CapabilityError, match=r"run\(namespace=\.\.\.\)"):
        ask.run(backend=plain, namespace="secret")
    assert plain.requests == []
    assert ask.run(backend=plain, namespace="").text() == "yes"
