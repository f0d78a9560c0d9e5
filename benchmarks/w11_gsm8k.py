"""W11, GSM8K: the same five worked examples before every question. The answers' lengths are those of the recorded
answers, since a random or a small model would end them anywhere."""

from __future__ import annotations

from typing import Any

import palmette as pt
from palmette.benchmarks import data
from palmette.benchmarks.workload import Round, Setup, Workload

_SHOTS = 5
# Tokens of the synthetic problems; what the recorded ones have in the mean.
_QUESTION, _ANSWER = 60, (60, 180)
_MAX_TOKENS = 512


@pt.function
def gsm8k(s: pt.State, shots: str, question: str, max_tokens: int) -> None:
    s += shots
    s += f"Question: {question}\nAnswer:"
    s += pt.gen("answer", max_tokens=max_tokens, ignore_eos=True)


def rounds(setup: Setup) -> list[Round]:
    if setup.folder:
        problems = data.gsm8k(setup.folder)
    else:
        problems = [_problem(setup, index) for index in range(_SHOTS + setup.items)]
    worked, asked = problems[:_SHOTS], problems[_SHOTS:]
    shots = "".join(f"Question: {problem.question}\nAnswer: {problem.answer}\n\n" for problem in worked)
    items: list[dict[str, Any]] = []
    for index in range(setup.items):
        problem = asked[index % len(asked)]
        answer = setup.writer.count(problem.answer)
        # A synthetic answer is scaled already.
        length = min(setup.tokens(answer) if setup.folder else answer, setup.tokens(_MAX_TOKENS))
        items.append({"shots": shots, "question": problem.question, "max_tokens": length})
    return [items]


def _problem(setup: Setup, index: int) -> data.Problem:
    length = setup.random("length", index).randint(*_ANSWER)
    question = setup.text("question", index, tokens=_QUESTION)
    return data.Problem(question, setup.text("answer", index, tokens=length))


WORKLOAD = Workload(
    name="W11",
    title="GSM8K, 5 shots",
    about="grade-school maths: five worked examples are shared by all questions; answers as long as the recorded ones",
    program=gsm8k,
    rounds=rounds,
    items=24,
    scale=0.4,
    files=("gsm8k_test.jsonl",),
)
