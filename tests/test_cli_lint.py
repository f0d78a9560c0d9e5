"""`palmette lint`: what it tells of each keyword, of what is refused, and to programs."""

from __future__ import annotations

import io
import json
import sys

import pytest

from palmette.cli import main

GOOD = {
    "title": "Order",
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bb"]}, "uniqueItems": True, "maxItems": 3},
        "size": {"oneOf": [{"type": "null"}, {"const": 1}]},
    },
    "required": ["age", "tags"],
    "additionalProperties": False,
}
BAD = {"properties": {"a": {"pattern": "(a)\\1"}, "b": {"minLenght": 3}, "c": {"format": "idn-hostname"}}}


@pytest.fixture
def lint(tmp_path, capsys):
    """Writes files and looks at them: (status, out, err). Arguments that are no names of files stay as they are."""

    def run(*arguments: str, **files: str):
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        given = [str(tmp_path / each) if (tmp_path / each).exists() else each for each in arguments]
        status = main(["lint", *given])
        return status, *capsys.readouterr()

    return run


def test_each_keyword_and_how_short_and_long_a_text_is(lint):
    status, out, err = lint("a.json", a_json=json.dumps(GOOD))
    assert (status, err) == (0, "")
    lines = [line.split(None, 1) for line in out.splitlines()]
    assert out.splitlines()[0].endswith("a.json: ok")
    assert ["enforced", "additionalProperties at /"] in lines
    assert ["rewritten", "oneOf at /properties/size"] in lines
    assert ["monitored", "uniqueItems at /properties/tags"] in lines
    assert ["annotation", "title at /"] in lines
    shortest = '{"age":0,"tags":[]}'
    assert ["shortest", f"{len(shortest)} bytes: {shortest}"] in lines
    longest = '{"age":150,"tags":["bb","bb"],"size":null}'  # of two values no more than two items differ
    assert ["longest", f"{len(longest)} bytes"] in lines


def test_all_faults_of_what_is_refused(lint):
    status, out, _ = lint("b.json", b_json=json.dumps(BAD))
    assert status == 1 and out.splitlines()[0].endswith("b.json: refused")
    for pointer, word in (
        ("/properties/a/pattern", "back-reference"),
        ("/properties/b/minLenght", "unknown keyword"),
        ("/properties/c/format", "idn-hostname"),
    ):
        assert any(line.strip().startswith(f"{pointer}: ") and word in line for line in out.splitlines())
    assert "hint: did you mean 'minLength'?" in out and "shortest" not in out


def test_json_is_for_programs(lint):
    status, out, _ = lint("a.json", "b.json", "--json", a_json=json.dumps(GOOD), b_json=json.dumps(BAD))
    good, bad = json.loads(out)
    assert status == 1 and not good["refused"] and bad["refused"]
    assert {"keyword": "uniqueItems", "pointer": "/properties/tags", "becomes": "monitored"} in good["keywords"]
    assert next(k for k in good["keywords"] if k["keyword"] == "oneOf")["becomes"] == "rewritten"
    assert good["shortest"] == {"text": '{"age":0,"tags":[]}', "bytes": 19} and good["longest"]["bounded"]
    assert {fault["pointer"] for fault in bad["faults"]} >= {"/properties/b/minLenght", "/properties/a/pattern"}
    assert all(fault["message"] and fault["hint"] for fault in bad["faults"])


def test_lines_records_grammars_and_patterns(lint):
    lines = "\n".join(
        [
            '{"type": "string"}',
            "",
            '{"name": "second", "schema": {"const": 1}, "tests": []}',
            "no json",
            '{"schema": "{\\"type\\": \\"nul\\"}"}',
        ]
    )
    grammar = 'start: "a" | "bc"\n'
    status, out, _ = lint("s.jsonl", "g.lark", "--regex", "[ab]{2}é?", s_jsonl=lines, g_lark=grammar)
    heads = [line for line in out.splitlines() if not line.startswith(" ")]
    assert status == 1
    assert heads[0] == "regex [ab]{2}é?: ok" and "  longest    4 bytes" in out
    assert [head.rsplit("/", 1)[-1] for head in heads[1:-2]] == [
        "s.jsonl:1: ok",
        "s.jsonl:3 (second): ok",
        "s.jsonl:4: refused",
        "s.jsonl:5: refused",
        "g.lark: ok",
    ]
    assert heads[-2].startswith("6 read: 4 enforced (0 with a monitor), 2 refused, 1 unbounded")
    assert "  longest    unbounded" in out and "  longest    not known" in out


def test_quiet_shows_what_is_refused_and_the_summary(lint):
    status, out, _ = lint("a.json", "b.json", "-q", a_json=json.dumps(GOOD), b_json=json.dumps(BAD))
    assert status == 1 and "a.json" not in out and "b.json: refused" in out
    assert "2 read: 1 enforced (1 with a monitor), 1 refused" in out and "pattern (1)" in out


@pytest.mark.parametrize("text", ['{"const": 1}', '{"const": 1}\n{"const": 22}\n'])
def test_standard_input(text, lint, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    status, out, _ = lint("-", "--json")
    assert status == 0
    assert [found["longest"]["bytes"] for found in json.loads(out)] == [1, 2][: text.count("const")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "give a FILE"), (["nothing.json"], "No such file"), (["a.txt"], "known are files that end in .json")],
)
def test_wrong_calls(arguments, words, lint):
    status, _, err = lint(*arguments)
    assert status == 2 and words in " ".join(err.replace("│", " ").split())


def test_a_pattern_that_is_refused_says_where(lint):
    status, out, _ = lint("--regex", "a(b)\\1")
    assert status == 1 and "@4: " in out
    status, out, _ = lint("--regex", "(")
    assert status == 1 and "refused" in out


def test_deep_and_hostile_files_are_refused_not_fatal(lint):
    status, out, _ = lint("d.json", d_json='{"not":' * 5000 + "{}" + "}" * 5000)
    assert status == 1 and "nested too deeply" in out


@pytest.mark.real
def test_tokens_of_a_model(lint):
    status, out, _ = lint("a.json", "--model", "smollm2-135m", "--json", a_json=json.dumps(GOOD))
    assert status == 0 and 1 < json.loads(out)[0]["shortest"]["tokens"] < 19
