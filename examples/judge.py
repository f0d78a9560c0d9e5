"""An LLM as a judge: one branch per dimension, each with a reason, a grade, and how sure the grade is.

    python examples/judge.py
"""

import palmette as pt

ESSAY = """\
Cities should plant more trees along their streets. A street with trees is up to five degrees cooler on a hot day, and
people walk there more. Trees cost money and drop leaves, but the leaves can be composted, and a tree that is planted
today serves for sixty years. I think that is a good bargain."""

DIMENSIONS = {
    "clarity": "How clear is the essay?",
    "evidence": "How well does the essay support what it says?",
    "style": "How well is the essay written?",
}
GRADES = ["1", "2", "3", "4", "5"]


@pt.function
def judge(s, essay: str = ESSAY):
    s += pt.system("You judge essays fairly, with grades from 1 (poor) to 5 (excellent).")
    # The essay stands before the fork, so it is computed once, however many dimensions there are.
    s += pt.user(f"Here is an essay.\n\n{essay}\n\nI will ask about it.")
    s += pt.assistant("Please ask.")
    with s.fork(len(DIMENSIONS)) as branches:
        for branch, question in zip(branches, DIMENSIONS.values(), strict=True):
            branch += pt.user(f"{question} Give one sentence, then a grade.")
            # Beginning the answer for the model keeps a small one on the subject.
            reason = "The essay" + pt.gen("reason", max_tokens=32, stop="\n")
            branch += pt.assistant(reason + "\nGrade: " + pt.select("grade", GRADES))
    # s["grade"] is now a list, in the order of the branches.
    grades = ", ".join(f"{name} {grade}" for name, grade in zip(DIMENSIONS, s["grade"], strict=True))
    s += pt.user(f"The grades were: {grades}. Sum up in one sentence.")
    s += pt.assistant("The essay" + pt.gen("summary", max_tokens=32, stop="\n"))


def main() -> None:
    state = judge.run(backend=pt.Engine("smollm2-135m"), temperature=0)
    for name, reason, result in zip(DIMENSIONS, state["reason"], state.result("grade"), strict=True):
        # The whole distribution is known, so the mean is a finer grade than the winner alone.
        mean = sum(int(grade) * p for grade, p in result.probabilities.items())
        print(f"{name:9} grade {result.text} (mean {mean:.2f})   The essay{reason}")
    print(f"Summary: The essay{state['summary']}")


if __name__ == "__main__":
    main()
