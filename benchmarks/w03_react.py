"""W3, ReAct agents, replayed: what the model writes is thrown away, and the recorded thought, action and observation
stand in its place, so that every run makes the same requests. Each step's prompt extends that of the step before."""

from __future__ import annotations

import palmette as pt
from palmette.benchmarks import data
from palmette.benchmarks.workload import Manner, Round, Setup, Workload

_EXAMPLES = 6


@pt.function
def react(s: pt.State, manner: Manner, examples: str, question: str, steps: list[data.Step], max_tokens: int) -> None:
    s += examples
    s += f"Question: {question}\n"
    for number in range(1, len(steps) + 2):
        s += f"Thought {number}:"
        with s.fork(1) as branches:
            branches += pt.gen("attempt", max_tokens=max_tokens, ignore_eos=True)
            manner.branched(branches[0])
        if number <= len(steps):
            s += " " + spelled(number, steps[number - 1])


def spelled(number: int, step: data.Step) -> str:
    """A step as the transcript has it, without the words that begin it."""
    return f"{step.thought}\nAction {number}: {step.action}\nObservation {number}: {step.observation}\n"


def rounds(setup: Setup) -> list[Round]:
    if setup.folder:
        examples = data.react_examples(setup.folder)
        questions = data.hotpot_questions(setup.folder)
        pool = data.react_steps(setup.folder)
    else:
        examples = "".join(_example(setup, index) for index in range(_EXAMPLES))
        questions = [setup.text("question", index, tokens=22) for index in range(setup.items)]
        pool = [_step(setup, "pool", index) for index in range(40)]
    items = []
    for index in range(setup.items):
        random = setup.random("agent", index)
        steps = random.sample(pool, random.randint(4, 5))
        question = questions[index % len(questions)]
        items.append({"examples": examples, "question": question, "steps": steps, "max_tokens": setup.tokens(200)})
    return [items]


def _example(setup: Setup, index: int) -> str:
    steps = [f"Thought {n}: " + spelled(n, _step(setup, "example", index, n)) for n in (1, 2, 3)]
    return f"Question: {setup.text('example', index, tokens=22)}\n" + "".join(steps)


def _step(setup: Setup, *label: object) -> data.Step:
    thought, action, observation = (
        setup.text(*label, part, tokens=tokens) for part, tokens in (("t", 28), ("a", 8), ("o", 56))
    )
    return data.Step(thought, action, observation)


WORKLOAD = Workload(
    name="W3",
    title="ReAct agents (replay)",
    about="agents that think, act and observe: shared worked examples, and each step extends the last; texts replayed",
    program=react,
    rounds=rounds,
    items=4,
    scale=0.2,
    files=("react_hotpot_prompts.json", "hotpot_dev_500.json"),
    forks=True,
)
