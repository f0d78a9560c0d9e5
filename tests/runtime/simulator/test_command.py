"""`palmette simulate`."""

from __future__ import annotations

import json

import pytest

from palmette.cli import main
from palmette.runtime.simulator import Range, Simulation, independent, write_trace

pytestmark = pytest.mark.tiny

QUICK = ["--requests", "40", "--prefix", "100", "--suffix", "10:20", "--groups", "4", "--output", "3:9"]


def flat(shown: str) -> str:
    """A usage error's words without the box around them and its line breaks."""
    return " ".join(shown.replace("│", " ").split())


def test_help_teaches(capsys):
    assert main(["--help"]) == 0
    assert "simulate" in capsys.readouterr().out
    assert main(["simulate", "--help"]) == 0
    out = capsys.readouterr().out
    assert "palmette simulate --policy fcfs --policy lpm" in out and "A line of a trace" in out
    assert '"prompt": [ids]' in flat(out)


def test_policies_side_by_side(capsys):
    assert main(["simulate", "--policy", "fcfs", "--policy", "lpm", "--tenants", "2", *QUICK]) == 0
    out, err = capsys.readouterr()
    assert any(line.split() == ["fcfs", "lpm"] for line in out.splitlines())
    assert "llama-3-8b on 1 x (NVIDIA H100 SXM), KV for 426,784 tokens each" in out
    assert "40 requests of shared-prefix" in out and "optimal hit rate" in out
    for word in ("requests/s", "latency p99", "achieved / optimal", "preemptions", "fairness", "tenant 1"):
        assert word in out
    assert err == ""


def test_no_digit_is_lost_where_many_policies_are_compared(monkeypatch, capsys):
    names = ["lpm", "fcfs", "dfs", "priority", "fair", "random"]
    words = [word for name in names for word in ("--policy", name)]
    shown = {}
    for width in ("60", "300"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["simulate", *words, *QUICK]) == 0
        shown[width] = capsys.readouterr().out
    assert "…" not in shown["60"]
    assert shown["60"].count("tokens computed") > 1 == shown["300"].count("tokens computed")
    (wide,) = [line for line in shown["300"].splitlines() if line.startswith("tokens computed")]
    narrow = [line for line in shown["60"].splitlines() if line.startswith("tokens computed")]
    assert [word for line in narrow for word in line.split()[2:]] == wide.split()[2:]
    assert len(wide.split()) == 2 + len(names)


def test_figures_are_shown_where_the_trace_cannot_be_kept(monkeypatch, tmp_path, capsys):
    def full(path, trace):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("palmette.cli.simulate.write_trace", full)
    assert main(["simulate", *QUICK, "--save", str(tmp_path / "t.jsonl"), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["policies"] and "No space left" in err and "hint: " in err


def test_json_is_all_that_json_prints(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    write_trace(path, independent(12, rate=5.0, prompt=Range(20, 30), output=Range(2, 4)))
    arguments = ["--hardware", "a100", "--replicas", "3", "--router", "least-loaded", "--policy", "fair", "--json"]
    assert main(["simulate", str(path), *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["replicas"], found["hardware"]["name"]) == (12, 3, "NVIDIA A100 80GB SXM")
    fair = found["policies"]["fair"]
    assert fair["requests"] == 12 and fair["latency"]["p99"] > 0 and fair["tenants"][""]["requests"] == 12
    assert found["optimum"]["prompt"] == fair["prompt_tokens"]


def test_a_made_up_trace_can_be_kept_and_run_again(tmp_path, capsys):
    path = tmp_path / "kept.jsonl"
    assert main(["simulate", *QUICK, "--save", str(path), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["simulate", str(path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for found in (first, again):
        found["policies"]["lpm"].pop("simulated_in_seconds")
    assert first["policies"] == again["policies"]


def test_a_shape_from_a_config(tmp_path, capsys):
    config = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["simulate", *QUICK, "--model-shape", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"].startswith("qwen2: 3 layers, 64 wide")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload", "chatt"], "did you mean 'chat'"),
        (["--hardware", "h300"], "did you mean 'h200'"),
        (["--router", "round_robin"], "did you mean 'round-robin'"),
        (["--model-shape", "lama-3-8b"], "did you mean 'llama-3-8b'"),
        (["--workload", "chat", "--groups", "3"], "of shared-prefix only"),
        (["--prefix", "9:3"], "neither a number of tokens nor LOW:HIGH"),
        (["--prefix", "many"], "neither a number of tokens nor LOW:HIGH"),
        (["--policy", "lmp"], "--policy: there is no 'lmp'; did you mean 'lpm'"),
        (["--eviction", "lruu"], "--eviction: there is no 'lruu'; did you mean 'lru'"),
        (["--rate", "0"], "lets nothing arrive"),
        (["nothing.jsonl"], "nothing.jsonl does not exist"),
        (["."], "is a folder"),
        (["--save", "/nope/x.jsonl"], "no folder /nope"),
        (["--save", "."], "is a folder; give a file"),
        (["--save", "/proc/x.jsonl"], "cannot be written"),
        (["--save", "-"], "--save"),
    ],
)
def test_wrong_options_are_usage_errors(arguments, words, capsys):
    assert main(["simulate", *arguments]) == 2
    assert words in flat(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model-shape", "llama-3-70b"], "more devices"),
        (["--requests", "10", "--kv-tokens", "100"], "none of the 10 requests fits in a KV cache of 100 tokens"),
    ],
)
def test_what_makes_no_sense_is_one_message_with_a_hint(arguments, words, capsys):
    assert main(["simulate", *arguments]) == 1
    err = capsys.readouterr().err
    assert words in err and "hint: " in err and "Traceback" not in err


def test_a_trace_and_how_to_make_one_up(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n")
    assert main(["simulate", str(path), "--output", "5"]) == 2
    assert "--output" in flat(capsys.readouterr().err)
    assert main(["simulate", str(path)]) == 1
    assert "there is no request in" in capsys.readouterr().err


def test_ctrl_c_shows_the_policies_that_are_done(monkeypatch, capsys):
    real = Simulation.run

    def run(self, trace):
        if self.settings.policy == "dfs":
            raise KeyboardInterrupt
        return real(self, trace)

    monkeypatch.setattr(Simulation, "run", run)
    assert main(["simulate", "--policy", "lpm", "--policy", "dfs", "--policy", "fcfs", *QUICK, "--json"]) == 130
    out, err = capsys.readouterr()
    assert list(json.loads(out)["policies"]) == ["lpm"] and "1 of 3 policies" in err
    assert main(["simulate", "--policy", "dfs", *QUICK]) == 130
    assert capsys.readouterr().out == ""
