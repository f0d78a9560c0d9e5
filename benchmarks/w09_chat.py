"""W9, conversations of four turns: each prompt extends the one before by an answer and a question."""

from __future__ import annotations

from typing import Any

import palmette as pt
from palmette.benchmarks.workload import Round, Setup, Workload

_TURNS = 4


@pt.function
def chat(s: pt.State, turns: list[tuple[str, int]]) -> None:
    for number, (question, answer_tokens) in enumerate(turns, 1):
        s += pt.user(question)
        s += pt.assistant(pt.gen(f"answer{number}", max_tokens=answer_tokens, ignore_eos=True))


def rounds(setup: Setup) -> list[Round]:
    # Short answers are as short at every scale: a few tokens are what makes them short.
    low, high = (setup.tokens(256), setup.tokens(512)) if setup.options.long else (4, 8)
    items: list[dict[str, Any]] = []
    for index in range(setup.items):
        turns = []
        for turn in range(_TURNS):
            random = setup.random("turn", index, turn)
            question = setup.writer.noise(random, random.randint(setup.tokens(256), setup.tokens(512)))
            turns.append((question, random.randint(low, high)))
        items.append({"turns": turns})
    return [items]


WORKLOAD = Workload(
    name="W9",
    title="Multi-turn chat",
    about="20 conversations of 4 turns at once, with short answers (--long: long ones); each turn extends the last",
    program=chat,
    rounds=rounds,
    items=20,
    scale=0.1,
    takes=("long",),
)
