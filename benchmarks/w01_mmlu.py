"""W1, MMLU: the worked examples of a subject are shared by all its questions, and make about 90 % of each prompt."""

from __future__ import annotations

from typing import Any

import palmette as pt
from palmette.benchmarks import data
from palmette.benchmarks.workload import Round, Setup, Workload

_SHOTS = 5
# Subjects: as many as there are (the synthetic copy has ten), but with so many questions at least.
_SUBJECTS, _QUESTIONS = 10, 8
# Tokens, worked examples included, that a prompt may have before its question.
_LIMIT = 1536


@pt.function
def mmlu(s: pt.State, shots: str, question: str) -> None:
    s += shots
    s += question + "\nAnswer:"
    s += pt.gen("answer", max_tokens=1, ignore_eos=True)


def rounds(setup: Setup) -> list[Round]:
    exams = data.mmlu(setup.folder) if setup.folder else _synthetic(setup)
    exams = exams[: max(1, setup.items // _QUESTIONS)]
    items: list[dict[str, Any]] = []
    for index, exam in enumerate(exams):
        # Subject after subject, as the harness asks, each with its share of the questions.
        share = (setup.items + index) // len(exams)
        shots = _shots(exam, setup)
        items += [{"shots": shots, "question": question} for question, _ in exam.questions[:share]]
    return [items]


def _shots(exam: data.Exam, setup: Setup) -> str:
    """As many worked examples as fit, at least one, below the subject's name."""
    name = exam.subject.replace("_", " ")
    header = f"The following are multiple choice questions (with answers) about {name}.\n\n"
    left = setup.tokens(_LIMIT) - setup.writer.count(header)
    kept: list[str] = []
    for question, answer in exam.shots[:_SHOTS]:
        shot = f"{question}\nAnswer: {answer}\n\n"
        left -= setup.writer.count(shot)
        if left < 0 and kept:
            break
        kept.append(shot)
    return header + "".join(kept)


def _synthetic(setup: Setup) -> list[data.Exam]:
    def questions(*label: object, count: int) -> list[tuple[str, str]]:
        made = []
        for number in range(count):
            stem = setup.text(*label, number, tokens=60)
            options = [setup.text(*label, number, letter, tokens=8) for letter in "ABCD"]
            made.append((data.asked(stem, options), setup.random(*label, number, "answer").choice("ABCD")))
        return made

    exams = []
    count = max(1, min(_SUBJECTS, setup.items // _QUESTIONS))
    for index in range(count):
        subject = setup.text("subject", index, tokens=4)
        shots = questions("shot", index, count=_SHOTS)
        exams.append(data.Exam(subject, shots, questions("question", index, count=1 + setup.items // count)))
    return exams


WORKLOAD = Workload(
    name="W1",
    title="MMLU, 5 shots",
    about="multiple choice: a subject's worked examples are shared by its questions; one token is generated",
    program=mmlu,
    rounds=rounds,
    items=40,
    scale=1.0,
    files=("mmlu/*_test.csv",),
)
