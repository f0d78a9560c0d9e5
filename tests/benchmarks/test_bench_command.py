"""`palmette bench`: tables for people, JSON for programs, and words for what is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import count

import pytest

import palmette.cli.bench
from palmette.benchmarks import suite
from palmette.cli import main
from palmette.cli.values import check_output

pytestmark = pytest.mark.tiny

SMALL = ("--model", "tiny", "--synthetic", "--items", "3", "--scale", "0.03")


def flat(shown: str) -> str:
    return " ".join(shown.replace("│", " ").split())


def test_list_says_what_there_is_without_torch():
    code = (
        "import sys\n"
        "from palmette.cli import main\n"
        "status = main(['bench', '--list'])\n"
        "print(status, [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 []"
    for name in ("W1", "W3", "W5", "W6", "W7", "W9", "W11", "W12", "W14", "W15", "cache-off", "sequential-forks"):
        assert f"\n{name} " in done.stdout


def test_help_teaches(capsys):
    assert main(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "palmette bench W5 --ablate cache-off" in shown
    assert "--list" in shown


def test_tables_and_files(tmp_path, capsys):
    out = tmp_path / "results.json"
    assert main(["bench", "w12", "W14", *SMALL, "--ablate", "cache-off", "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    for words in (
        "W12 Several chains",
        "W14 In-batch",
        "cache-",
        "achieved / optimal",
        "same answers",
        "All workloads",
    ):
        assert words in shown
    data = json.loads(out.read_text())
    manifest = data["manifest"]
    assert manifest["model"]["name"] == "tiny"
    assert manifest["settings"]["policy"] == "lpm"
    assert {"date", "command", "palmette", "python", "torch", "processor"} <= manifest.keys()
    assert [workload["name"] for workload in data["workloads"]] == ["W12", "W14"]
    for workload in data["workloads"]:
        full, off = workload["variants"]
        assert (full["name"], off["name"]) == ("full", "cache-off")
        assert full["same_answers"] is off["same_answers"] is True
        assert full["runs"][0]["programs"] == 3
        assert off["runs"][0]["cached_tokens"] == 0
        assert off["ratios"]["forward tokens"] > 1.1


def test_json_alone_on_the_output(capsys):
    assert main(["bench", "W15", *SMALL, "--kv-tokens", "2000", "--policy", "dfs", "--json", "-"]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert "W15 Generated" in captured.err
    assert data["manifest"]["settings"]["policy"] == "dfs"
    assert data["workloads"][0]["variants"][0]["runs"][0]["kv_tokens"] == 2000


def test_a_trace_has_a_line_for_each_request(tmp_path):
    path = tmp_path / "trace.jsonl"
    assert main(["bench", "W7", *SMALL, "--ablate", "cache-off", "--trace", str(path)]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 3 * 7
    assert all(line["prompt"] and line["output"] for line in lines)
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "palmette bench --list"),
        (("W2",), "did you mean"),
        (("W1", "--ablate", "cache-of"), "did you mean 'cache-off'"),
        (("W1", "--policy", "lmp"), "--policy: there is no 'lmp'; did you mean 'lpm'"),
        (("W1", "--eviction", "lruu"), "--eviction: there is no 'lruu'; did you mean 'lru'"),
        (("W1", "--zipf"), "only W15 heeds it"),
        (("W1", "W5", "--trace", "x.jsonl"), "a trace is of one workload"),
        (("W1", "--json", "/nowhere/x.json"), "no folder /nowhere"),
        (("W1", "--json", "."), "--json: . is a folder; give a file"),
        (("W1", "--trace", "."), "--trace: . is a folder; give a file"),
        (("W1", "--trace", "-"), "give a file"),
        (("W1", "--json", "/proc/x.json"), "cannot be written"),
        (("W1", "--json", "x.json", "--trace", "./x.json"), "the same file"),
        (("W1", "--items", "0"), "--items"),
        (("W14", "--mode", "twice"), "--mode"),
    ],
)
def test_wrong_calls_are_usage_errors(words, said, capsys):
    assert main(["bench", *words, "--model", "tiny"]) == 2
    assert said in flat(capsys.readouterr().err)


def test_a_check_leaves_files_as_they_are(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("kept")
    for path in (old, new):
        check_output("--json", path)
    assert old.read_text() == "kept" and not new.exists()


def test_results_are_not_lost_where_files_cannot_be_written(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    run = suite.run

    def remove(*args, **kwargs):
        folder.rmdir()
        return run(*args, **kwargs)

    monkeypatch.setattr(suite, "run", remove)
    files = ("--json", str(folder / "x.json"), "--trace", str(folder / "t.jsonl"))
    assert main(["bench", "W14", *SMALL, *files]) == 1
    out, err = capsys.readouterr()
    assert "W14 In-batch" in out and json.loads(out[out.index("\n{") :])["workloads"][0]["name"] == "W14"
    assert "--json" in err and "--trace" in err and "cannot be written" in err and "Traceback" not in err


def test_what_is_compared_with_nothing_is_not_called_the_same(capsys):
    assert main(["bench", "W14", *SMALL, "--ablate", "lpm", "--ablate", "sequential-forks"]) == 0
    shown = capsys.readouterr().out
    (answers,) = [line for line in shown.splitlines() if line.startswith("same answers")]
    assert answers.split()[-1] == "-"
    assert "--ablate lpm is left out: it is what the full engine does" in shown
    assert "--ablate sequential-forks is left out: W14 forks nothing" in shown


def test_short_runs_are_called_noise(capsys):
    assert main(["bench", "W14", *SMALL, "--ablate", "fcfs"]) == 0
    assert "mostly noise" in capsys.readouterr().out


def test_a_misspelt_tiny(capsys):
    assert main(["bench", "W14", "--model", "tinny"]) == 1
    assert "did you mean 'tiny'" in capsys.readouterr().err


def test_a_variant_that_was_broken_off_is_no_result(monkeypatch, tmp_path, capsys):
    @contextmanager
    def interrupted(name, runs):
        yield lambda variant, programs: lambda: variant.name == "fcfs" and signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(palmette.cli.bench, "_progress", interrupted)
    out = tmp_path / "results.json"
    assert main(["bench", "W14", *SMALL, "--parallel", "1", "--ablate", "fcfs", "--json", str(out)]) == 130
    shown, err = capsys.readouterr()
    assert "(broken" in shown and "interrupted" in err
    (speed,) = [line for line in shown.splitlines() if line.startswith("programs/s")]
    assert speed.split()[-1] == "-"
    full, fcfs = json.loads(out.read_text())["workloads"][0]["variants"]
    assert full["complete"] and full["ratios"] and not fcfs["complete"]
    assert fcfs["ratios"] is None and fcfs["same_answers"] is None


def test_ctrl_c_before_the_first_workload_still_writes_json(monkeypatch, tmp_path, capsys):
    def interrupted(subject):
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "warm_up", interrupted)
    out = tmp_path / "results.json"
    assert main(["bench", "W14", *SMALL, "--json", str(out)]) == 130
    data = json.loads(out.read_text())
    assert data["workloads"] == [] and data["manifest"]["model"]["name"] == "tiny"
    assert "interrupted" in capsys.readouterr().err


def test_ctrl_c_shows_what_is_done(monkeypatch, tmp_path, capsys):
    ended = count(1)

    @contextmanager
    def interrupted(name, runs):
        def tick():
            if next(ended) == 5:
                signal.raise_signal(signal.SIGINT)

        yield lambda variant, programs: tick

    monkeypatch.setattr(palmette.cli.bench, "_progress", interrupted)
    out = tmp_path / "results.json"
    words = ["bench", "W7", "W12", "W14", *SMALL, "--parallel", "1", "--json", str(out)]
    assert main(words) == 130
    shown = capsys.readouterr().out
    assert "W7 LLM judge: 3 programs" in shown
    assert "W12 Several chains of reasoning: 2 programs" in shown
    assert "(broken off)" in shown
    assert "W14 In-batch" not in shown
    assert [workload["name"] for workload in json.loads(out.read_text())["workloads"]] == ["W7", "W12"]


def test_answers_that_differ_fail(monkeypatch, capsys):
    different = count()
    monkeypatch.setattr("palmette.benchmarks.measure.digest", lambda records: str(next(different)))
    assert main(["bench", "W14", *SMALL, "--ablate", "fcfs"]) == 1
    captured = capsys.readouterr()
    assert "NO" in captured.out
    assert "W14 fcfs" in captured.err
