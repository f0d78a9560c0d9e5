"""Properties of transcripts, over random programs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import palmette as pt
from palmette.interpreter.transcript import Transcript
from palmette.runtime.protocol import Piece
from palmette.testing import MockBackend, MockCodec

pytestmark = pytest.mark.timeout(120)

words = st.text(alphabet="ab é\n<|>", max_size=6)
actions = st.recursive(
    st.one_of(
        st.tuples(st.just("text"), words),
        st.tuples(st.just("gen"), words),
        st.tuples(st.just("select"), st.lists(words, min_size=1, max_size=3, unique=True)),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("scope"), st.lists(inner, max_size=3)),
        st.tuples(st.just("fork"), st.lists(st.lists(inner, max_size=3), min_size=1, max_size=3)),
    ),
    max_leaves=12,
)


def write(s, plan, said, variables, depth=0):
    """Does what the plan says; `said` and `variables` are what a naive reader expects."""
    for kind, what in plan:
        name = f"{kind}{depth}_{len(variables)}"
        if kind == "text":
            s += what
            said.append(what)
        elif kind == "gen":
            s += pt.gen(name, stop_token_ids=[0])
            said.append(f"<{name}>")
            variables[name] = f"<{name}>"
        elif kind == "select":
            s += pt.select(name, what)
            said.append(what[0])
            variables[name] = what[0]
        elif kind == "scope":
            start = len(said)
            with s.var_scope(name):
                write(s, what, said, variables, depth + 1)
            variables[name] = "".join(said[start:])
        else:
            theirs = [dict(variables) for _ in what]
            before = set(variables)
            with s.fork(len(what)) as branches:
                texts = []
                for branch, own, plan_of_branch in zip(branches, theirs, what, strict=True):
                    text = list(said)
                    write(branch, plan_of_branch, text, own, depth + 1)
                    texts.append("".join(text))
                assert [branch.text() for branch in branches] == texts
            for new in {new for own in theirs for new in own} - before:
                variables[new] = [own.get(new) for own in theirs]


class Naming(MockBackend):
    """Answers with the variable's name, so each generated text tells whose it is."""

    async def submit(self, request):
        self._answers[request.name] = f"<{request.name}>"
        async for event in super().submit(request):
            yield event


@settings(max_examples=150, deadline=None)
@given(st.lists(actions, max_size=6))
def test_text_variables_tokens_and_stream_agree_with_a_naive_reader(plan):
    said, variables = [], {}

    @pt.function
    def program(s):
        write(s, plan, said, variables)

    backend = Naming()
    state = program.run(backend=backend)
    assert state.text() == "".join(said)
    assert state.variables == variables
    assert backend.codec.decode(state.tokens()) == "".join(said)

    again = Naming()
    said.clear()
    variables.clear()
    stream = program.stream(backend=again)
    events = list(stream)
    assert "".join(e.text for e in events if isinstance(e, pt.TextEvent)) == state.text()
    assert {e.name: e.value for e in events if isinstance(e, pt.VariableEvent)} == state.variables
    assert sorted(r.name for r in again.requests) == sorted(r.name for r in backend.requests)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(words, st.just(None)), max_size=12))
def test_each_prompt_extends_the_one_before_it(plan):
    @pt.function
    def program(s):
        for piece in plan:
            s += pt.gen() if piece is None else piece

    backend = MockBackend(default="ab a")
    state = program.run(backend=backend)
    prompts = [request.tokens for request in backend.requests] + [tuple(state.tokens())]
    answer = tuple(backend.codec.encode("ab a"))
    for shorter, longer in pairwise(prompts):
        assert longer[: len(shorter) + len(answer)] == shorter + answer


roles = st.sampled_from(["system", "user", "assistant"])
messages = st.lists(st.tuples(roles, st.lists(words, max_size=3)), min_size=1, max_size=5)


class Trimming(MockCodec):
    def chat_trims(self, role):
        return role != "assistant"


@settings(max_examples=100, deadline=None)
@given(messages)
def test_a_chat_of_pieces_equals_the_chat_in_one_piece(chat):
    """What a template makes of the whole messages: stripped where it strips, tokenised as one text."""
    codec = Trimming()
    transcript = Transcript()
    for role, pieces in chat:
        transcript.begin(role, codec)
        for piece in pieces:
            transcript.literal(piece)
        transcript.end(codec)
    whole = []
    for role, pieces in chat:
        content = "".join(pieces)
        content = content.strip() if role != "assistant" else content
        whole += [Piece(f"<|im_start|>{role}\n", True), Piece(content), Piece("<|im_end|>\n", True)]
    assert transcript.text() == "".join(piece.text for piece in whole)
    assert transcript.tokens(codec) == codec.encode(whole, start=True)
    assert list(transcript.prompt(codec).tokens) == transcript.tokens(codec)
    assert [m["content"] for m in transcript.messages()] == [whole[3 * i + 1].text for i in range(len(chat))]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5), st.integers(0, 12))
def test_dropping_tokens_takes_them_from_the_end(runs, count):
    transcript = Transcript()
    for run in runs:
        transcript.generated("", run)
    transcript.drop_tokens(count)
    flat = [token for run in runs for token in run]
    assert transcript.tokens(MockCodec()) == flat[: max(0, len(flat) - count)]
