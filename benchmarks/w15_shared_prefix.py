"""W15, system prompts that groups of requests share, in no order; groups are equally large, or by Zipf's law."""

from __future__ import annotations

import palmette as pt
from palmette.benchmarks.workload import Round, Setup, Workload

_PER_GROUP = 16


@pt.function
def answer(s: pt.State, system: str, question: str, max_tokens: int) -> None:
    s += system + question + pt.gen("answer", max_tokens=max_tokens, ignore_eos=True)


def rounds(setup: Setup) -> list[Round]:
    groups = max(1, setup.items // _PER_GROUP)
    random = setup.random("order")
    if setup.options.zipf:
        asked = random.choices(range(groups), weights=[1 / rank for rank in range(1, groups + 1)], k=setup.items)
    else:
        asked = [index % groups for index in range(setup.items)]
        random.shuffle(asked)
    systems = [setup.text("system", group, tokens=2048) for group in range(groups)]
    return [
        [
            {
                "system": systems[group],
                "question": " " + setup.text("question", index, tokens=128),
                "max_tokens": setup.tokens(256),
            }
            for index, group in enumerate(asked)
        ]
    ]


WORKLOAD = Workload(
    name="W15",
    title="Generated shared prefixes",
    about="system prompts of 2048 tokens, 16 requests on each, shuffled (--zipf: some prompts much oftener)",
    program=answer,
    rounds=rounds,
    items=64,
    scale=0.08,
    takes=("zipf",),
)
