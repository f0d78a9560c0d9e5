"""The command line: exit status, messages that help, and what a program may read (--json). Most run on a mock."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import date
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest

import palmette
from palmette.cli import main
from palmette.cli.chat import Conversation, obey
from palmette.cli.output import human_size
from palmette.cli.program import read_value, split_target
from palmette.errors import BackendError

# A file of programs that brings its own backend, so that no model is needed.
PROGRAMS = """
import palmette as pt

SCRIPT = {"answer": "forty two", "count": "7", "pick": "b", "tip": ["one", "two"]}
pt.set_default_backend(pt.testing.MockBackend(SCRIPT))


@pt.function
def qa(s, question, words: int = 3, loud: bool = False):
    s += f"Q: {question} ({words!r}, {loud!r})\\nA: " + pt.gen("answer", max_tokens=16)


@pt.function
def typed(s):
    s += pt.gen("count", type=int) + " " + pt.select("pick", ["a", "b"])


@pt.function
def forked(s):
    s += "Tips: "
    with s.fork(2) as branches:
        branches += pt.gen("tip")
    s += " and ".join(s["tip"])


@pt.function
def talkative(s):
    print("noise")
    s += pt.gen("answer")


@pt.function
def silent(s):
    s += "Nothing to ask."


@pt.function
def broken_pattern(s):
    s += pt.gen("x", regex="(")


@pt.function
def broken_python(s):
    s += "fine"
    raise ValueError("my own mistake")
"""


def flat(shown: str) -> str:
    """A usage error's words without the box around them and its line breaks."""
    return " ".join(shown.replace("│", " ").split())


@pytest.fixture
def programs(tmp_path) -> str:
    path = tmp_path / "programs.py"
    path.write_text(PROGRAMS)
    yield str(path)
    palmette.set_default_backend(None)


def test_help_teaches(capsys):
    assert main(["--help"]) == 0
    words = capsys.readouterr().out
    for command in ("run", "chat", "models", "bench", "doctor", "lint"):
        assert command in words
    assert main(["run", "--help"]) == 0
    assert "palmette run examples/tour.py" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "palmette 0.1.0\n"


@pytest.mark.parametrize("command", ["serve", "jobs"])
def test_commands_to_come_are_unknown(command, capsys):
    assert main([command]) == 2
    assert f"No such command '{command}'" in flat(capsys.readouterr().err)


def test_misspelt_command_and_option_get_a_suggestion(capsys):
    assert main(["modles"]) == 2
    assert "models" in flat(capsys.readouterr().err)
    assert main(["run", "x.py", "--modle", "m"]) == 2
    assert "--model" in capsys.readouterr().err


def test_no_command_shows_help(capsys):
    assert main([]) == 2
    assert "Usage" in "".join(capsys.readouterr())


# -- run ---------------------------------------------------------------------------------------------------------------


def test_run_shows_text_then_variables(programs, capsys):
    assert main(["run", f"{programs}:qa", "--arg", "question=Why?", "--arg", "words=5", "-a", "loud=true"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Q: Why? (5, True)\nA: forty two\n")
    header, row = [line for line in out.splitlines() if "answer" in line or "cached" in line][-2:]
    assert all(word in header for word in ("variable", "cached", "generated", "forced", "end"))
    assert "forty two" in row


def test_run_without_variables_shows_no_table(programs, capsys):
    assert main(["run", f"{programs}:silent"]) == 0
    assert capsys.readouterr().out == "Nothing to ask.\n"


def test_run_json(programs, capsys):
    assert main(["run", f"{programs}:typed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["variables"] == {"count": "7", "pick": "b"}
    count, pick = found["results"]
    assert count["name"] == "count" and count["value"] == 7 and count["completion_tokens"] >= 1
    assert pick["name"] == "pick" and set(pick["probabilities"]) == {"a", "b"}
    assert found["text"] == "7 b"


def test_json_is_all_that_json_prints(programs, capsys):
    assert main(["run", f"{programs}:talkative", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["variables"] == {"answer": "forty two"} and err == "noise\n"


def test_run_shows_every_branch(programs, capsys):
    assert main(["run", f"{programs}:forked", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variables"] == {"tip": ["one", "two"]}
    assert main(["run", f"{programs}:forked"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["tip[0]"] or "tip[1]" in line]
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nothing.py", "Invalid value for FILE.py[:FUNCTION]: there is no file"),
        ("nothing", "is not FILE.py"),
        ("{programs}", "say which"),
        ("{programs}:ga", "did you mean 'qa'"),
        ("{programs}:qa", "--arg question=..."),
    ],
)
def test_wrong_target_is_a_usage_error(target, words, programs, capsys):
    assert main(["run", target.format(programs=programs)]) == 2
    assert words in flat(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("question", "is not NAME=VALUE"),
        ("qestion=x", "did you mean 'question'"),
        ("words=many", "words=many"),
        ("loud=perhaps", "loud=perhaps"),
    ],
)
def test_wrong_argument_is_a_usage_error(pair, words, programs, capsys):
    assert main(["run", f"{programs}:qa", "--arg", "question=x", "--arg", pair]) == 2
    assert words in flat(capsys.readouterr().err)


def test_error_of_palmette_is_one_message_with_a_hint(programs, capsys):
    assert main(["run", f"{programs}:broken_pattern"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "hint: " in err and "Traceback" not in err


def test_error_of_the_program_is_its_own_traceback(programs, capsys):
    assert main(["run", f"{programs}:broken_python"]) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "Traceback (most recent call last):"
    assert err.splitlines()[-1].startswith("ValueError: my own mistake")
    assert "palmette/cli" not in err, "frames of the command line are not the user's concern"


def test_file_that_does_not_load(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("import palmette as pt\nprint(undefined)\n")
    assert main(["run", str(tmp_path / "bad.py")]) == 1
    assert "NameError" in capsys.readouterr().err
    (tmp_path / "worse.py").write_text("def f(:\n")
    assert main(["run", str(tmp_path / "worse.py")]) == 1
    assert "SyntaxError" in capsys.readouterr().err


def test_file_without_programs(tmp_path, capsys):
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert main(["run", str(tmp_path / "empty.py")]) == 2
    assert "defines no @palmette.function" in flat(capsys.readouterr().err)


def test_backend_url_says_what_is_missing(programs, capsys):
    assert main(["run", f"{programs}:qa", "--backend", "http://127.0.0.1:30000"]) == 1
    err = capsys.readouterr().err
    assert "http://127.0.0.1:30000" in err and "hint: leave --backend out" in err


def test_model_that_does_not_exist(programs, capsys):
    assert main(["run", f"{programs}:typed", "--model", "smollm-135m"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "smollm2-135m" in err


def test_target_may_hold_colons(tmp_path):
    (tmp_path / "a:b.py").write_text("")
    assert split_target(f"{tmp_path}/a:b.py") == (tmp_path / "a:b.py", None)
    assert split_target(f"{tmp_path}/a:b.py:f") == (tmp_path / "a:b.py", "f")


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("3", str, "3"),
        ("3", int, 3),
        ("3", float, 3.0),
        ("true", bool, True),
        ("no", bool, False),
        ('["a", "b"]', list[str], ["a", "b"]),
        ('{"a": 1}', dict[str, int], {"a": 1}),
        ("red", Colour, Colour.RED),
        ("2026-01-31", date, date(2026, 1, 31)),
        ("a/b", Path, Path("a/b")),
        ("3", str | None, "3"),
        ("null", str | None, None),
    ],
)
def test_values_are_read_by_their_annotation(text, annotation, value):
    found = read_value("k", text, annotation)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("tea", "tea"), ("[1]", [1]), ("null", None), ('"3"', "3")])
def test_values_without_annotation_are_json_or_text(text, value):
    assert read_value("k", text) == value


# -- chat --------------------------------------------------------------------------------------------------------------


class FakeEngine:
    """Answers with the number of messages that it was given; `script` may hold an exception to raise instead."""

    script: list[BaseException | None] = []  # noqa: RUF012 - each test sets its own
    seen: list[list[dict[str, str]]] = []  # noqa: RUF012

    def __init__(self, model: str) -> None:
        self.model = model

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def generate(self, messages, *, stream, temperature, max_tokens):
        assert stream and temperature == 0.7 and max_tokens == 512
        type(self).seen.append([dict(message) for message in messages])
        trouble = type(self).script.pop(0) if type(self).script else None
        yield SimpleNamespace(text="got ")
        if trouble is not None:
            raise trouble
        yield SimpleNamespace(text=str(len(messages)))


@pytest.fixture
def chat(monkeypatch, capsys):
    """Runs `palmette chat` over some lines of input: (status, out, err)."""
    monkeypatch.setattr(palmette, "Engine", FakeEngine, raising=False)
    monkeypatch.setattr(FakeEngine, "seen", [])
    monkeypatch.setattr(FakeEngine, "script", [])

    def talk(*lines: str, script=(), options=()):
        FakeEngine.script[:] = script
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        status = main(["chat", *options])
        return status, *capsys.readouterr()

    return talk


def test_chat_keeps_the_conversation(chat):
    status, out, err = chat("hello", "and now?", options=["--system", "Be brief."])
    assert (status, out, err) == (0, "got 2\ngot 4\n", "")
    assert FakeEngine.seen[-1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "got 2"},
        {"role": "user", "content": "and now?"},
    ]


def test_chat_commands(chat):
    lines = ["hello", "/reset", "again", "/system New rules.", "x", "/system", "/hlep", "/help", "/quit", "unread"]
    status, out, err = chat(*lines)
    assert status == 0
    assert [len(messages) for messages in FakeEngine.seen] == [1, 1, 2]
    assert "New rules.\n" in out and "/reset" in out
    assert "did you mean '/help'" in err


def test_ctrl_c_stops_the_answer_not_the_talk(chat):
    status, out, _ = chat("hello", "again", script=[KeyboardInterrupt()])
    assert (status, out) == (0, "got  [stopped]\ngot 3\n")
    assert FakeEngine.seen[1][1] == {"role": "assistant", "content": "got "}


def test_a_failed_answer_leaves_the_conversation_as_it_was(chat):
    status, _, err = chat("too long", "short", script=[BackendError("does not fit", hint="shorten it")])
    assert status == 0 and "error: does not fit" in err and "hint: shorten it" in err
    assert FakeEngine.seen[1] == [{"role": "user", "content": "short"}]


def test_chat_quit_ends_and_system_without_text_only_shows(capsys):
    conversation = Conversation("Old.")
    conversation.say("user", "x")
    assert obey("system", conversation) and conversation.turns
    assert not obey("quit", conversation)


@pytest.mark.real
def test_chat_with_the_model():
    done = subprocess.run(
        [sys.executable, "-m", "palmette", "chat", "--temperature", "0", "--max-tokens", "16"],
        input="Say hello.\n/reset\nSay hello.\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, reset, second = done.stdout.splitlines()
    assert first == second != "" and reset == "(a new conversation)"


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["doctor"], ["models", "list"], ["bench", "W1"], ["run", "x.py"]])
def test_ctrl_c_while_libraries_are_imported_is_said(command, monkeypatch, capsys):
    class Importing:
        """Ctrl-C in the middle of the import of a command's module."""

        def find_spec(self, name, path=None, target=None):
            if name.startswith("palmette.cli."):
                raise KeyboardInterrupt

    for name in [name for name in sys.modules if name.startswith("palmette.cli.") and not name.endswith(".app")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Importing(), *sys.meta_path])
    assert main(command) == 130
    assert capsys.readouterr().err == "interrupted\n"
    monkeypatch.delitem(sys.modules, "palmette.cli.app")
    assert main(command) == 130
    assert capsys.readouterr().err == "interrupted\n"


# -- models and doctor -------------------------------------------------------------------------------------------------


def test_models_list_and_path_with_an_empty_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path))
    assert main(["models", "list", "--json"]) == 0
    (small,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "smollm2-135m"]
    assert small["path"] is None
    assert main(["models", "path", "smollm2-135m"]) == 1
    assert "palmette models pull smollm2-135m" in capsys.readouterr().err


def test_models_pull_of_an_unknown_name(capsys):
    assert main(["models", "pull", "smollm-135m"]) == 1
    err = capsys.readouterr().err
    assert "smollm2-135m" in err and "hint" in err


@pytest.mark.real
def test_models_pull_and_path(capsys):
    assert main(["models", "pull", "smollm2-135m"]) == 0
    capsys.readouterr()
    assert main(["models", "path", "smollm2-135m"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.suffix == ".gguf" and path.is_file()
    assert main(["models", "list"]) == 0
    assert "smollm2-135m" in capsys.readouterr().out


def test_doctor_json(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["palmette"]["version"] == "0.1.0"
    assert found["torch"]["threads"] >= 1 and found["torch"]["version"].startswith("2.")
    assert found["kernels"]["cpu"].startswith(("C++ for ", "reference (plain torch): "))
    assert found["same tokens"]["cpu fp32"].startswith("bit-identical in every batch and schedule: ")
    levels = ("bit-identical in every batch and schedule: ", "not promised: ")
    assert found["same tokens"]["cpu bf16"].startswith(levels) and found["same tokens"]["default"]
    assert found["libraries"]["llguidance"][0].isdigit()
    assert "smollm2-135m" in found["models"]["known"]


def test_doctor_for_people(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for section in ("python", "torch", "processor", "kernels", "same tokens", "libraries", "models"):
        assert section in out


@pytest.mark.real
def test_doctor_with_a_model(capsys):
    assert main(["doctor", "--model", "smollm2-135m", "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert model["layers"] == 30 and model["context"] == 8192
    # k and v, 30 layers, 3 heads of 64
    size = {"bfloat16": 2, "float32": 4}[model["kv_dtype"]]
    assert model["kv_bytes_per_token"] == 2 * 30 * 3 * 64 * size
    assert "in Q4_1" in model["weights"] or "in float32" in model["weights"]
    assert model["kv_tokens"] > 0


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (135_400_000, "135.4 MB"), (2.5e9, "2.5 GB")]
)
def test_human_size(count, words):
    assert human_size(count) == words
