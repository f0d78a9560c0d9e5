"""W12, several chains of reasoning: a question is answered five times side by side, and once more with the five answers
in view."""

from __future__ import annotations

import palmette as pt
from palmette.benchmarks import data
from palmette.benchmarks.workload import Manner, Round, Setup, Workload

_TEMPERATURE = 0.3
_BEGINNINGS = (
    "Let us think step by step.",
    "First, we write down what is known.",
    "To solve this, one quantity is found after the other.",
    "We go backwards from what is asked.",
    "Each sentence of the question is made an equation.",
)


@pt.function
def chains(s: pt.State, manner: Manner, question: str, max_tokens: int, final_tokens: int) -> None:
    s += f"Question: {question}\nAnswer: "
    with s.fork(len(_BEGINNINGS)) as branches:
        for branch, beginning in zip(branches, _BEGINNINGS, strict=True):
            branch += beginning + pt.gen("chain", max_tokens=max_tokens, temperature=_TEMPERATURE, ignore_eos=True)
            manner.branched(branch)
    s += "These are five solutions.\n\n"
    for number, (beginning, chain) in enumerate(zip(_BEGINNINGS, s["chain"], strict=True), 1):
        s += f"Solution {number}: {beginning}{chain}\n\n"
    s += "Most of them come to this answer:" + pt.gen("answer", max_tokens=final_tokens, ignore_eos=True)


def rounds(setup: Setup) -> list[Round]:
    if setup.folder:
        questions = [problem.question for problem in data.gsm8k(setup.folder)]
    else:
        questions = [setup.text("question", index, tokens=60) for index in range(setup.items)]
    return [
        [
            {
                "question": questions[index % len(questions)],
                "max_tokens": setup.tokens(256),
                "final_tokens": setup.tokens(16),
            }
            for index in range(setup.items)
        ]
    ]


WORKLOAD = Workload(
    name="W12",
    title="Several chains of reasoning",
    about="a question answered five times side by side by a fork of five, then once more with all answers in view",
    program=chains,
    rounds=rounds,
    items=10,
    scale=0.1,
    files=("gsm8k_test.jsonl",),
    forks=True,
)
