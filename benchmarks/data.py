"""Recorded data: where they lie, and how to read them. palmette ships none (their licences are their own)."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from palmette.errors import ArgumentError

VARIABLE = "PALMETTE_BENCH_DATA"

_STEP = re.compile(
    r"Thought (?P<n>\d+): (?P<thought>.*)\nAction (?P=n): (?P<action>.*)\nObservation (?P=n): (?P<observation>.*)"
)


class Exam(NamedTuple):
    """A subject of MMLU: questions with their options below, and the answer's letter."""

    subject: str
    shots: list[tuple[str, str]]
    questions: list[tuple[str, str]]


class Problem(NamedTuple):
    """Of GSM8K."""

    question: str
    answer: str


class Step(NamedTuple):
    """One turn of an agent: what it thought, what it did, what came back."""

    thought: str
    action: str
    observation: str


def find(given: Path | None = None) -> Path | None:
    """The folder of recorded data: `given`, else the environment's, else shared/data/bench beside the repository; None
    where that is not there. ArgumentError where one that was named is not."""
    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None:
        folder = named.expanduser()
        if not folder.is_dir():
            how = "--data" if given is not None else VARIABLE
            raise ArgumentError(f"{how}: there is no folder {folder}", hint="name a folder, or leave it out")
        return folder
    beside = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "bench"
    return beside if beside.is_dir() else None


def mmlu(folder: Path) -> list[Exam]:
    """All subjects that are there, by name."""
    exams = []
    for path in sorted((folder / "mmlu").glob("*_test.csv")):
        subject = path.name.removesuffix("_test.csv")
        exams.append(Exam(subject, _questions(path.with_name(f"{subject}_dev.csv")), _questions(path)))
    return exams


def gsm8k(folder: Path) -> list[Problem]:
    lines = (folder / "gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines()
    return [Problem(row["question"], row["answer"]) for row in map(json.loads, lines)]


def hotpot_questions(folder: Path) -> list[str]:
    rows = json.loads((folder / "hotpot_dev_500.json").read_text(encoding="utf-8"))
    return [row["question"] for row in rows]


def react_examples(folder: Path) -> str:
    """Six questions worked out in the manner of ReAct."""
    prompts = json.loads((folder / "react_hotpot_prompts.json").read_text(encoding="utf-8"))
    return str(prompts["webthink_simple6"]).lstrip()


def react_steps(folder: Path) -> list[Step]:
    """All steps of the worked examples that got an observation."""
    prompts = json.loads((folder / "react_hotpot_prompts.json").read_text(encoding="utf-8"))
    return [
        Step(*match.group("thought", "action", "observation")) for match in _STEP.finditer(prompts["webthink_simple"])
    ]


def _questions(path: Path) -> list[tuple[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return [(asked(row[0], row[1:5]), row[5]) for row in rows]


def asked(stem: str, options: list[str]) -> str:
    """A question with its options in lines of their own, as MMLU's harness prints it."""
    return stem + "".join(f"\n{letter}. {option}" for letter, option in zip("ABCD", options, strict=True))
