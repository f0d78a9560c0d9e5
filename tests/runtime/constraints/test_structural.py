"""Structural tags and the tool formats that are made of them: what they take, and what of calls is found again."""

from __future__ import annotations

import json

import pytest

from palmette.errors import ArgumentError, ConstraintError
from palmette.runtime.constraints.compile import ConstraintCompiler, validate
from palmette.runtime.constraints.tool_formats import (
    FORMATS,
    Tool,
    ToolCall,
    calls_of,
    format_of,
    named,
    structural_tag,
)
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint

BYTES = Vocabulary.of_bytes()
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [Tool("add", ADD), Tool("say", {"type": "object", "properties": {}, "additionalProperties": False})]


def accepts(spec: object, *texts: str, vocabulary: Vocabulary = BYTES) -> list[bool]:
    text = spec if isinstance(spec, str) else json.dumps(spec)
    compiled = ConstraintCompiler(vocabulary).compile(Constraint("structural_tag", text))
    return [compiled.accepts(text.encode()) for text in texts]


def test_the_older_form_binds_what_follows_a_trigger() -> None:
    spec = {
        "structures": [
            {"begin": "<fn=add>", "schema": ADD, "end": "</fn>"},
            {"begin": '<fn=é"x>', "schema": True, "end": "</fn>"},
        ],
        "triggers": ["<fn="],
    }
    good = 'hi <f <fn=add>{"a":1}</fn> and <fn=é"x>[1]</fn>!'
    assert accepts(spec, good, "no call at all", 'x <fn=add>{"a":"1"}</fn>', "x <fn=", "<fn=other>") == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_formats_nest() -> None:
    think = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
    answer = {
        "type": "or",
        "elements": [
            {"type": "regex", "pattern": "[0-9]{2,3}/é"},
            {"type": "grammar", "grammar": 'start: "ok" | "no" start'},
        ],
    }
    spec = {"type": "structural_tag", "format": {"type": "sequence", "elements": [think, answer]}}
    assert accepts(spec, "<think>hm</think>123/é", "<think></think>nook") == [True, True]
    assert accepts(spec, "123/é", "<think>a</think></think>ok", "<think>hm") == [False, False, False]


def test_a_control_token_is_meant_where_a_string_spells_it() -> None:
    vocabulary = Vocabulary(
        [*(bytes([b]) for b in range(256)), None, None],
        width=259,
        end_ids=frozenset({258}),
        control={"<call>": 256, "<done>": 257, "<end>": 258},
        encode=list,
    )
    spec = {
        "type": "triggered_tags",
        "triggers": ["<call>"],
        "tags": [
            {
                "type": "tag",
                "begin": "<call>add",
                "content": {"type": "json_schema", "json_schema": ADD},
                "end": "<done><end>",
            }
        ],
    }
    matcher = ConstraintCompiler(vocabulary).compile(Constraint("structural_tag", json.dumps(spec))).start()
    text = [*b"well ", 256, *b'add{"a":4}', 257]
    assert all(map(matcher.advance, text)) and matcher.allows_end()
    # Spelled out, it is text like any other.
    assert accepts(spec, "<call>nothing", vocabulary=vocabulary) == [True]


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ([], ""),
        ({"type": "structural_tag"}, "/format"),
        ({"type": "triggered_tag"}, "/type"),
        ({"type": "const_string", "valeu": "a"}, "/valeu"),
        ({"type": "const_string"}, ""),
        ({"type": "const_string", "value": 3}, "/value"),
        ({"type": "sequence", "elements": [{"type": "regex", "pattern": "a(?<=b)"}]}, "/elements/0/pattern"),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": []}, "/tags"),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": [{"type": "tag", "begin": "[", "content": {"type": "any_text"}, "end": "]"}],
            },
            "/tags/0/begin",
        ),
    ],
)
def test_faults_have_a_pointer_and_a_hint(spec: object, pointer: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        validate(Constraint("structural_tag", json.dumps(spec)))
    assert caught.value.pointer == pointer and caught.value.hint


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    deep = '{"type":"sequence","elements":[' * 20_000 + "]}" * 20_000
    with pytest.raises(ConstraintError):
        validate(Constraint("structural_tag", deep))


@pytest.mark.parametrize("name", list(FORMATS))
def test_each_tool_format_takes_its_own_calls_and_finds_them_again(name: str) -> None:
    form = FORMATS[name]

    def call(tool: str, arguments: str) -> str:
        return form.begin.replace("NAME", tool) + arguments + form.end

    one = form.open + call("add", '{"a":1}') + form.close
    two = form.open + form.separator.join([call("add", '{"a":1}'), call("say", "{}")]) + form.close
    wrong = form.open + call("add", '{"b":1}') + form.close
    unknown = form.open + call("sub", '{"a":1}') + form.close
    many = not form.single
    required = structural_tag(form, TOOLS, choice="required")
    assert accepts(required, one, two, "text", "text " + one, wrong, unknown) == [
        True,
        many,
        False,
        False,
        False,
        False,
    ]
    assert accepts(structural_tag(form, TOOLS, choice="required", parallel=False), one, two) == [True, False]
    assert accepts(structural_tag(form, TOOLS[:1], choice="required"), one, call("say", "{}")) == [True, False]
    auto = structural_tag(form, TOOLS)
    assert accepts(auto, "just text", "let me see " + one, wrong, unknown) == [True, True, False, False]
    thinking = structural_tag(form, TOOLS, choice="required", reasoning=("<think>", "</think>"))
    assert accepts(thinking, f"<think>{form.trigger}?</think>{one}", one, "<think>a") == [True, True, False]
    assert calls_of(form, "let me see " + one) == ("let me see", (ToolCall("add", '{"a":1}'),))
    assert calls_of(form, two)[1] == (ToolCall("add", '{"a":1}'), ToolCall("say", "{}"))
    assert calls_of(form, "none here") == ("none here", ())
    cut = one[: -len(form.end + form.close) - 2]
    assert calls_of(form, cut) == (cut, ())


def test_a_template_tells_its_format() -> None:
    assert format_of("{% for t in tools %}<tool_call>{% endfor %}") == "hermes"
    assert format_of("[AVAILABLE_TOOLS][TOOL_CALLS]") == "mistral"
    assert format_of("{{ messages }}") == "json"
    with pytest.raises(ArgumentError, match="hermes"):
        named("hermess")


def test_tools_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ArgumentError, match="two tools"):
        structural_tag(FORMATS["json"], [Tool("a"), Tool("a")])
    with pytest.raises(ArgumentError, match="no tools"):
        structural_tag(FORMATS["json"], [])
