"""Recorded data: found where they are said to be, read into what the workloads need."""

from __future__ import annotations

import json

import pytest

from palmette.benchmarks import data
from palmette.benchmarks.workloads import WORKLOADS
from palmette.errors import ArgumentError

EXAMPLES = """
Question: Who?
Thought 1: I look.
Action 1: Search[who]
Observation 1: Nobody.
Thought 2: I know.
Action 2: Finish[nobody]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mmlu").mkdir()
    (tmp_path / "mmlu" / "tea_dev.csv").write_text('"Is tea hot, or ""not""?",yes,no,both,neither,A\n')
    (tmp_path / "mmlu" / "tea_test.csv").write_text('Which cup?,a,b,c,d,B\n"Two\nlines?",a,b,c,d,D\n')
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    (tmp_path / "hotpot_dev_500.json").write_text('[{"question": "Who?", "answer": "me", "type": "x"}]')
    prompts = {"webthink_simple": EXAMPLES, "webthink_simple6": EXAMPLES}
    (tmp_path / "react_hotpot_prompts.json").write_text(json.dumps(prompts))
    return tmp_path


def test_reading(folder):
    (exam,) = data.mmlu(folder)
    assert exam.subject == "tea"
    assert exam.shots == [('Is tea hot, or "not"?\nA. yes\nB. no\nC. both\nD. neither', "A")]
    assert [answer for _, answer in exam.questions] == ["B", "D"]
    assert data.gsm8k(folder) == [data.Problem("1 + 1?", "#### 2")]
    assert data.hotpot_questions(folder) == ["Who?"]
    assert data.react_examples(folder).startswith("Question: Who?")
    # The last step has no observation: it ends the example.
    assert data.react_steps(folder) == [data.Step("I look.", "Search[who]", "Nobody.")]


def test_a_workload_is_recorded_where_all_its_files_are(folder, tmp_path):
    recorded = {name for name, workload in WORKLOADS.items() if workload.recorded(folder)}
    assert recorded == {"W1", "W3", "W5", "W11", "W12"}
    (folder / "hotpot_dev_500.json").unlink()
    assert not WORKLOADS["W3"].recorded(folder)
    assert not any(workload.recorded(None) for workload in WORKLOADS.values())


def test_where_data_lie(folder, tmp_path, monkeypatch):
    monkeypatch.setenv(data.VARIABLE, str(folder))
    assert data.find() == folder
    monkeypatch.setenv(data.VARIABLE, "/nowhere")
    assert data.find(folder) == folder
    with pytest.raises(ArgumentError, match=data.VARIABLE):
        data.find()
    with pytest.raises(ArgumentError, match="--data"):
        data.find(tmp_path / "missing")
