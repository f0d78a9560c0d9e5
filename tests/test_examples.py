"""Every example, as it stands, on the real small model; and every block of the tutorial. The model is too small to be
right, so what is checked is the shape of what they print."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import palmette
from palmette.cli.program import choose_function, load_module, read_arguments
from palmette.errors import ConstraintError

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, *arguments: str) -> str:
    """What the example prints, run as its first lines say."""
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_are_tested_here():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES} <= tested


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_palmette_run_finds_the_program_and_needs_no_arguments(path):
    function = choose_function(load_module(path), path, None)
    assert read_arguments(function, []) == {}


@pytest.mark.real
def test_tour():
    lines = run("tour").splitlines()
    assert lines[0].split() == ["answer", "cached", "generated", "forced"]
    rows = [re.fullmatch(r"(\w+) +(\d+) +(\d+) +(\d+)   (.*)", line).groups() for line in lines[1:-1]]
    assert [row[0] for row in rows] == ["sentence", "home", "weight", "record", "food", "food"]
    text = {row[0]: row[4] for row in rows}
    cached = [int(row[1]) for row in rows]
    assert cached[0] == 0 and all(now > before for before, now in itertools.pairwise(cached[:5]))
    assert text["home"] in ("in the water", "in trees", "under the ground")
    assert re.fullmatch(r"[1-9][0-9]{0,2} (kg|g)", text["weight"])
    record = json.loads(text["record"])
    assert set(record) == {"name", "legs", "can_swim"}
    assert int(rows[3][3]) > 0, "the keys of the record are forced"
    assert [int(row[2]) > 0 for row in rows] == [True, False, True, True, True, True], "select generates nothing"
    assert lines[-1].startswith("The record is a Animal(name=")


@pytest.mark.real
def test_extract_json(tmp_path):
    notice = json.loads(run("extract_json"))
    assert set(notice) == {"place", "topic", "upper_floor_open", "contact", "phone"}
    assert notice["topic"] in ("repair", "event", "opening hours", "other")
    assert re.fullmatch(r"[0-9]{3} [0-9]{4}", notice["phone"])
    other = tmp_path / "other.txt"
    other.write_text("The swimming pool opens on 1 June. Ask Tom Weber, 555 0199.")
    assert set(json.loads(run("extract_json", str(other)))) == set(notice)


@pytest.mark.real
def test_react():
    lines = run("react").splitlines()
    assert lines[0].startswith("Question: ")
    assert lines[1].startswith("Thought:")
    actions = [line.removeprefix("Action: ") for line in lines if line.startswith("Action: ")]
    assert 1 <= len(actions) <= 3
    assert set(actions[:-1]) <= {"calculate"} and actions[-1] == "finish"
    assert sum(line.startswith("Observation: ") for line in lines) == len(actions) - 1
    assert lines[-1].startswith("Answer: ")


@pytest.mark.real
def test_judge():
    lines = run("judge").splitlines()
    for name, line in zip(("clarity", "evidence", "style"), lines, strict=False):
        found = re.fullmatch(rf"{name} +grade ([1-5]) \(mean ([0-9.]+)\)   .*", line)
        assert found and 1 <= float(found[2]) <= 5
    assert lines[-1].startswith("Summary: The essay")


@pytest.mark.real
def test_classify():
    lines = run("classify").splitlines()
    assert len(lines) == 4
    for line in lines:
        found = re.match(r"(Billing|Billing - refund|Delivery|Account|Praise|unclear) +(\d+)%, then .* (\d+)%;", line)
        assert found and int(found[2]) >= int(found[3])
        cached, prompt = map(int, re.search(r"(\d+) of (\d+) prompt tokens cached", line).groups())
        assert cached < prompt
    # The examples in front of the messages are computed once, by the first.
    assert sum(" 0 of " in line for line in lines) <= 1


@pytest.mark.real
def test_tree_of_thought():
    lines = run("tree_of_thought").splitlines()
    scores = [float(line.split("  ")[0]) for line in lines[:-1]]
    assert len(scores) == 2 and sorted(scores, reverse=True) == scores and all(0 <= score <= 1 for score in scores)
    assert all(line.count("  ->  ") == 1 for line in lines[:-1]), "two steps deep"
    assert lines[-1].startswith("In short: ")


@pytest.mark.real
def test_chat_stream():
    output = run("chat_stream")
    parts = re.split(r"^> .*$", output, flags=re.MULTILINE)
    assert re.findall(r"^> (.*)$", output, flags=re.MULTILINE) == [
        "Hello! Who are you?",
        "Name three colours.",
        "Which of them is the warmest?",
    ]
    assert len(parts) == 4 and all(part.strip() for part in parts[1:])


@pytest.mark.real
def test_label_batch():
    rows = [json.loads(line) for line in run("label_batch").splitlines()]
    assert len(rows) == 8
    for row in rows:
        if row["review"]:
            assert row["mood"] in ("good", "bad", "mixed") and 1 / 3 <= row["p"] <= 1
            assert re.fullmatch("[a-z]{3,12}", row["why"])
        else:
            assert row == {"review": "", "error": "the review is empty"}


def blocks_of(page: str, language: str = "python") -> list[str]:
    """The page's fenced blocks of that language; "" for those that name none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def printed_by(code: str, page: str) -> str:
    """What a page's code prints. The engine and the default backend that it makes are undone."""
    namespace: dict[str, object] = {"__name__": "page"}
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, page, "exec", dont_inherit=True), namespace)
    finally:
        palmette.set_default_backend(None)
        if "engine" in namespace:
            namespace["engine"].close()
    return out.getvalue()


@pytest.mark.real
def test_tutorial():
    blocks = blocks_of("docs/tutorial.md")
    assert len(blocks) >= 10
    printed = printed_by("\n".join(blocks), "docs/tutorial.md")  # they go on from each other
    assert "did you mean 'max_tokens'" in printed
    assert "kind='" in printed and "vegetarian=" in printed
    assert "hint: " in printed


def test_constraints_page(tiny_engine):
    names = {"__name__": "page", "engine": tiny_engine()}
    for block in blocks_of("docs/constraints.md"):
        try:
            exec(compile(block, "docs/constraints.md", "exec", dont_inherit=True), dict(names))
        except ConstraintError as error:
            # A random model hardly ever writes a pair, and that is told.
            assert "on_unsupported" in block and error.pointer == "/pair"


@pytest.mark.real
def test_readme():
    (program,) = blocks_of("README.md")
    shown = blocks_of("README.md", "")[-1]
    printed = printed_by(program, "README.md")
    # Other machines may round differently and so write other words; the counts follow from the lengths.
    assert len(printed.splitlines()) == len(shown.splitlines())
    assert printed.splitlines()[3].startswith("Dish(kind=") and shown.splitlines()[3].startswith("Dish(kind=")
    assert printed.splitlines()[4] == shown.splitlines()[4] == "how: 0 of 43 prompt tokens were cached"
