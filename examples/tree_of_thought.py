"""Tree of thought: propose several next steps, let the model judge each, keep the best, and go deeper.

    python examples/tree_of_thought.py
"""

from typing import NamedTuple

import palmette as pt

PUZZLE = "A farmer must bring a wolf, a goat and a cabbage over a river. The boat holds one of them beside the farmer."


class Plan(NamedTuple):
    """The steps up to here, and how good the model thinks they are (a product of probabilities)."""

    steps: tuple[str, ...]
    score: float


@pt.function
def solve(s, puzzle: str = PUZZLE, depth: int = 2, width: int = 2, keep: int = 2):
    s += f"Puzzle: {puzzle}\nA plan, step by step:\n"
    plans = [Plan((), 1.0)]
    for level in range(1, depth + 1):
        # `width` proposals for each plan that is left. Every branch starts from the same text; what two of them have
        # in common after that (the same earlier steps) is found in the cache.
        parents = [plan for plan in plans for _ in range(width)]
        with s.fork(len(parents)) as branches:
            for i, branch in enumerate(branches):
                branch += "".join(f"- {step}\n" for step in parents[i].steps)
                branch += "- " + pt.gen(f"step{level}", max_tokens=16, stop="\n", temperature=0.8, seed=i)
                branch += "\nIs the last step a good one? Answer: " + pt.select(f"good{level}", ["yes", "no"])
        children = [
            Plan((*parent.steps, step.strip()), parent.score * verdict.probabilities["yes"])
            for parent, step, verdict in zip(parents, s[f"step{level}"], s.result(f"good{level}"), strict=True)
        ]
        plans = sorted(children, key=lambda plan: plan.score, reverse=True)[:keep]
    s.set_var("plans", plans)
    s += "".join(f"- {step}\n" for step in plans[0].steps)
    s += "In short: " + pt.gen("summary", max_tokens=24, stop="\n", temperature=0)


def main() -> None:
    state = solve.run(backend=pt.Engine("smollm2-135m"))
    for plan in state["plans"]:
        print(f"{plan.score:.3f}  " + "  ->  ".join(plan.steps))
    print("In short:", state["summary"].strip())


if __name__ == "__main__":
    main()
