"""How models write calls of tools, as data; what a text must look like that calls some; and the calls of a text.

A format is what stands before the arguments of a call and behind them. From it, and from the tools, comes a structural
tag (structural.py) for each tool_choice: free text in which a call may begin, calls alone, one of them or several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palmette.errors import ArgumentError, suggestion

Choice = Literal["auto", "required"]


def _deep(words: str) -> str:
    """A control token of DeepSeek's, with the wide bars and the raised blanks that it has."""
    return f"<\uff5ctool\u2581{words.replace(' ', chr(0x2581))}\uff5c>"


@dataclass(frozen=True, slots=True)
class Tool:
    """parameters: the JSON Schema of its arguments, an object."""

    name: str
    parameters: Mapping[str, Any] | bool = True


@dataclass(frozen=True, slots=True)
class ToolCall:
    """arguments: JSON, as it was written."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """begin and end: around the arguments, NAME where the tool's name goes. open and close: around all calls, where
    they are written as one thing. separator: between two calls. trigger: how a call in free text is known. single: the
    model writes one call at a time. marks: spellings in a chat template that tell this format, any of them."""

    begin: str
    end: str
    trigger: str
    open: str = ""
    close: str = ""
    separator: str = ""
    single: bool = False
    marks: tuple[str, ...] = ()


# In the order in which a template is searched for their marks.
FORMATS: Mapping[str, ToolFormat] = {
    "deepseek-v3.1": ToolFormat(
        begin=f"{_deep('call begin')}NAME{_deep('sep')}",
        end=_deep("call end"),
        trigger=_deep("calls begin"),
        open=_deep("calls begin"),
        close=_deep("calls end"),
        marks=(f"</think>{_deep('calls begin')}",),
    ),
    "deepseek": ToolFormat(
        begin=f"{_deep('call begin')}function{_deep('sep')}NAME\n```json\n",
        end=f"\n```{_deep('call end')}",
        trigger=_deep("calls begin"),
        open=_deep("calls begin"),
        close=_deep("calls end"),
        separator="\n",
        marks=(_deep("calls begin"),),
    ),
    "harmony": ToolFormat(
        begin="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        end="<|call|>",
        trigger="<|channel|>commentary to=",
        single=True,
        marks=("<|channel|>commentary",),
    ),
    "mistral": ToolFormat(
        begin='{"name": "NAME", "arguments": ',
        end="}",
        trigger="[TOOL_CALLS]",
        open="[TOOL_CALLS] [",
        close="]",
        separator=", ",
        marks=("[TOOL_CALLS]",),
    ),
    "hermes": ToolFormat(
        begin='<tool_call>\n{"name": "NAME", "arguments": ',
        end="}\n</tool_call>",
        trigger="<tool_call>",
        separator="\n",
        marks=("<tool_call>",),
    ),
    "llama3": ToolFormat(
        begin='{"name": "NAME", "parameters": ',
        end="}",
        trigger='{"name": ',
        separator="; ",
        marks=("<|python_tag|>", "<|eom_id|>", '"parameters": dictionary of argument name'),
    ),
    "gemma": ToolFormat(
        begin='{"name": "NAME", "parameters": ',
        end="}",
        trigger='{"name": ',
        separator="\n",
        marks=("<start_of_turn>",),
    ),
    "json": ToolFormat(begin='{"name": "NAME", "arguments": ', end="}", trigger='{"name": ', separator="\n"),
}


def format_of(template: str) -> str:
    """The name of the format that a chat template writes calls in; "json" where it tells none."""
    return next((name for name, one in FORMATS.items() if any(mark in template for mark in one.marks)), "json")


def named(name: str) -> ToolFormat:
    """ArgumentError for a name that there is no format of."""
    if name not in FORMATS:
        raise ArgumentError(f"there is no tool format {name!r}", hint=suggestion(name, FORMATS))
    return FORMATS[name]


def structural_tag(
    form: ToolFormat,
    tools: Sequence[Tool],
    *,
    choice: Choice = "auto",
    parallel: bool = True,
    reasoning: tuple[str, str] | None = None,
) -> str:
    """The specification, as JSON, of texts that call these tools.

    choice: "auto", the text may call some; "required", it calls at least one and says nothing else. (A tool that is
    named is "required" with that tool alone.) parallel: several calls. reasoning: how a block begins and ends that may
    stand before all, and is free. ArgumentError where there is no tool, or two have one name.
    """
    if not tools:
        raise ArgumentError("there are no tools to call", hint="give at least one, or leave the tool choice out")
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ArgumentError(f"two tools are named {twice!r}", hint="give each a name of its own")
    tags = [_tag(form, tool) for tool in tools]
    many = parallel and not form.single
    calls: dict[str, Any] = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": not many,
    }
    body: dict[str, Any]
    if choice == "required":
        body = _around(form, calls) if form.open else calls
    elif form.open:
        rest = form.open.removeprefix(form.trigger)
        content = {"type": "sequence", "elements": [_text(rest), calls]} if rest else calls
        whole = {"type": "tag", "begin": form.trigger, "content": content, "end": form.close}
        body = {"type": "triggered_tags", "triggers": [form.trigger], "tags": [whole], "stop_after_first": True}
    else:
        body = {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags, "stop_after_first": not many}
    if reasoning is not None:
        begin, end = reasoning
        block = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}
        both = {"type": "sequence", "elements": [block, body]}
        body = {"type": "or", "elements": [both, body]}
    return json.dumps({"type": "structural_tag", "format": body}, ensure_ascii=False)


def calls_of(form: ToolFormat, text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """What a text says besides, and its calls, in order; `text`: control tokens spelled. A call that is cut off, or is
    none, stays in the text."""
    name = r'(?P<name>[^"\n<>]+?)'
    begin = re.escape(form.begin).replace("NAME", name)
    pattern = re.compile(begin)
    said, calls, at = [], [], 0
    while found := pattern.search(text, at):
        arguments = _value(text, found.end())
        if arguments is None or not text.startswith(form.end, found.end() + len(arguments)):
            said.append(text[at : found.end()])
            at = found.end()
            continue
        said.append(text[at : found.start()])
        calls.append(ToolCall(found["name"], arguments))
        at = found.end() + len(arguments) + len(form.end)
    said.append(text[at:])
    if not calls:
        return text, ()
    between = [said[0], *(part if part != form.separator else "" for part in said[1:])]
    free = "".join(between)
    if form.open:
        free = free.replace(form.open, "", 1).replace(form.close, "", 1)
    return free.strip(), tuple(calls)


def _value(text: str, at: int) -> str | None:
    """The JSON value that stands at `at`."""
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
    return text[at:end]


def _tag(form: ToolFormat, tool: Tool) -> dict[str, Any]:
    quoted = form.begin.partition("NAME")[0].endswith('"')
    name = json.dumps(tool.name, ensure_ascii=False)[1:-1] if quoted else tool.name
    content = {"type": "json_schema", "json_schema": tool.parameters}
    return {"type": "tag", "begin": form.begin.replace("NAME", name), "content": content, "end": form.end}


def _around(form: ToolFormat, calls: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": [_text(form.open), calls, _text(form.close)]}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}
