"""W5, tree of thought: plans are proposed, carried out and reflected on, by a fork of three from every node. All of the
way to a node is shared by what grows from it: 3 + 9 + 27 generations for a question."""

from __future__ import annotations

import palmette as pt
from palmette.benchmarks import data
from palmette.benchmarks.workload import Manner, Round, Setup, Workload

_WIDTH = 3
_TEMPERATURE = 0.3

# A variable of each level, and what it is asked for by.
_PLAN = (
    "Read the question below and say how you would go about answering it: which quantities are known, which is wanted, "
    "and by which steps one comes from those to this one. Do not calculate yet.\nQuestion: {question}"
)
_LEVELS = (
    ("plan", _PLAN),
    ("solution", "That is a good plan. Now carry it out with the numbers of the question, and write each step down."),
    ("reflection", "Go through the solution once more. Is each step right? Say what you would change, and the answer."),
)


@pt.function
def tree_of_thought(s: pt.State, manner: Manner, question: str, max_tokens: int) -> None:
    grow(s, manner, question, max_tokens, 0)


def grow(s: pt.State, manner: Manner, question: str, max_tokens: int, level: int) -> None:
    """Everything below a node, level by level."""
    name, ask = _LEVELS[level]
    s += pt.user(ask.format(question=question))
    with s.fork(_WIDTH) as branches:
        for branch in branches:
            branch += pt.assistant(pt.gen(name, max_tokens=max_tokens, temperature=_TEMPERATURE, ignore_eos=True))
            if level + 1 < len(_LEVELS):
                grow(branch, manner, question, max_tokens, level + 1)
            manner.branched(branch)


def rounds(setup: Setup) -> list[Round]:
    if setup.folder:
        questions = [problem.question for problem in data.gsm8k(setup.folder)]
    else:
        questions = [setup.text("question", index, tokens=60) for index in range(setup.items)]
    return [
        [
            {"question": questions[index % len(questions)], "max_tokens": setup.tokens(256)}
            for index in range(setup.items)
        ]
    ]


WORKLOAD = Workload(
    name="W5",
    title="Tree of thought",
    about="plan, carry out, reflect: three forks of three, 39 generations a question; the way to a node is shared",
    program=tree_of_thought,
    rounds=rounds,
    items=4,
    scale=0.06,
    files=("gsm8k_test.jsonl",),
    forks=True,
)
