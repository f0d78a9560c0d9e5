"""`palmette lint`: what becomes of schemas, grammars and patterns, without a model."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from palmette.cli.output import console, print_json
from palmette.errors import ConstraintError
from palmette.runtime.constraints.compile import ConstraintCompiler
from palmette.runtime.constraints.inspection import MONITORED, Inspection, inspect
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint

_BECOMES = ("enforced", "rewritten", MONITORED, "annotation")
_STYLES = {"enforced": "green", "rewritten": "cyan", MONITORED: "yellow", "annotation": "dim"}
_GRAMMARS = (".lark", ".gbnf", ".ebnf")
_FILES = ".json, .jsonl, " + ", ".join(_GRAMMARS)
# Of each keyword so many places are shown; --json has all.
_SHOWN = 4
_SHOWN_TEXT = 60


@dataclass(frozen=True, slots=True)
class Item:
    """What is to be looked at: a constraint, or why there is none."""

    name: str
    constraint: Constraint | None
    error: ConstraintError | None = None


def run_lint(
    files: Sequence[str],
    *,
    patterns: Sequence[str] = (),
    model: str | None = None,
    whitespace: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Look at all of them and print what was found. The exit status: 1 where one is refused."""
    if not files and not patterns:
        raise typer.BadParameter("give a FILE, or - for standard input, or --regex PATTERN", param_hint="FILE...")
    items = [Item(f"regex {pattern}", Constraint("regex", pattern)) for pattern in patterns]
    for file in files:
        items += _items(file, whitespace)
    compiler = ConstraintCompiler(_vocabulary(model))
    out = console()
    found: list[tuple[str, Inspection]] = []
    for item in items:
        report = Inspection(faults=item.error.faults) if item.error else inspect(_given(item), compiler)
        found.append((item.name, report))
        if not as_json and (report.refused or not quiet):
            _show(out, item.name, report, with_tokens=model is not None)
    if as_json:
        print_json([_data(name, report, with_tokens=model is not None) for name, report in found])
    elif len(found) > 1:
        out.print(_summary([report for _, report in found]), soft_wrap=True)
    return int(any(report.refused for _, report in found))


def _given(item: Item) -> Constraint:
    assert item.constraint is not None
    return item.constraint


def _vocabulary(model: str | None) -> Vocabulary:
    if model is None:
        return Vocabulary.of_bytes()
    from palmette.runtime.models.checkpoint import open_checkpoint
    from palmette.runtime.models.registry import resolve

    with open_checkpoint(resolve(model)) as checkpoint:
        vocabulary: Vocabulary = checkpoint.tokenizer().vocabulary
        return vocabulary


# -- what files hold ---------------------------------------------------------------------------------------------------


def _items(file: str, whitespace: bool) -> Iterator[Item]:
    if file == "-":
        text = sys.stdin.read()
        name, suffix = "stdin", ".json"
        if not _is_json(text) and all(_is_json(line) for line in text.splitlines() if line.strip()):
            suffix = ".jsonl"
    else:
        name, suffix, text = file, Path(file).suffix.lower(), _read(file)
    if suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield _record(name, number, line, whitespace)
    elif suffix in _GRAMMARS:
        yield Item(name, Constraint("grammar", text))
    else:
        yield Item(name, Constraint("json_schema", text, whitespace))


def _read(file: str) -> str:
    path = Path(file)
    if path.suffix.lower() not in (".json", ".jsonl", *_GRAMMARS):
        raise typer.BadParameter(f"{file}: known are files that end in {_FILES}", param_hint="FILE...")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE...") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not written in UTF-8", param_hint="FILE...") from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _record(file: str, number: int, line: str, whitespace: bool) -> Item:
    """A line: a schema, or a record with one under "schema" and perhaps its name under "name" or "id"."""
    name = f"{file}:{number}"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Item(name, None, ConstraintError(f"the line is no JSON: {error}", hint="one JSON value a line"))
    if isinstance(value, dict) and isinstance(value.get("schema"), dict | bool | str):
        called = value.get("name", value.get("id"))
        name = f"{name} ({called})" if isinstance(called, str) else name
        schema = value["schema"]
        line = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    return Item(name, Constraint("json_schema", line, whitespace))


# -- what is shown -----------------------------------------------------------------------------------------------------


def _show(out: Console, name: str, report: Inspection, *, with_tokens: bool) -> None:
    verdict = Text("refused", style="bold red") if report.refused else Text("ok", style="bold green")
    out.print(Text(f"{name}: ", style="bold") + verdict, soft_wrap=True)
    for fault in report.faults:
        where = Text(f"  {fault.pointer or '(whole)'}: ", style="cyan")
        out.print(where + Text(fault.message), soft_wrap=True)
        if fault.hint:
            out.print(Text(f"    hint: {fault.hint}", style="dim"), soft_wrap=True)
    for becomes in _BECOMES:
        places: dict[str, list[str]] = {}
        for each in report.occurrences:
            if each.becomes == becomes:
                places.setdefault(each.keyword, []).append(each.pointer or "/")
        for number, (keyword, pointers) in enumerate(sorted(places.items())):
            head = Text(f"  {becomes if not number else '':<11}", style=_STYLES[becomes])
            more = f" and {len(pointers) - _SHOWN} more" if len(pointers) > _SHOWN else ""
            where = Text(f"at {', '.join(pointers[:_SHOWN])}{more}", style="dim")
            out.print(head + Text(f"{keyword} ") + where, soft_wrap=True)
    if not report.refused:
        out.print(f"  {'shortest':<11}{_shortest(report, with_tokens)}", markup=False, soft_wrap=True)
        out.print(f"  {'longest':<11}{_longest(report)}", markup=False, soft_wrap=True)


def _shortest(report: Inspection, with_tokens: bool) -> str:
    if report.shortest is None:
        return "not known"
    size = f"{len(report.shortest)} bytes"
    if with_tokens:
        size += ", tokens not known" if report.tokens is None else f", {report.tokens} tokens"
    text = report.shortest.decode(errors="replace")
    return f"{size}: {text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 3] + '...'}"


def _longest(report: Inspection) -> str:
    if not report.measured:
        return "not known"
    return "unbounded" if report.longest is None else f"{report.longest} bytes"


def _summary(reports: Iterable[Inspection]) -> str:
    reports = list(reports)
    refused = sum(report.refused for report in reports)
    watched = sum(any(o.becomes == MONITORED for o in report.occurrences) for report in reports if not report.refused)
    unbounded = sum(report.measured and report.longest is None for report in reports)
    line = f"{len(reports)} read: {len(reports) - refused} enforced ({watched} with a monitor), {refused} refused, "
    line += f"{unbounded} unbounded"
    # What most of them fail by comes first.
    reasons = Counter(reason for report in reports for reason in dict.fromkeys(map(_keyword, report.faults)))
    if reasons:
        line += "\nrefused for: " + ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(8))
    return line


def _keyword(fault: ConstraintError) -> str:
    """What a fault is counted under: the last name of its pointer that is no place in a list or a pattern."""
    names = [name for name in fault.pointer.split("/") if name and not name.isdecimal() and not name.startswith("@")]
    return names[-1] if names else fault.message.split(":")[0]


def _data(name: str, report: Inspection, *, with_tokens: bool) -> dict[str, Any]:
    return {
        "name": name,
        "refused": report.refused,
        "faults": [{"pointer": f.pointer, "message": f.message, "hint": f.hint} for f in report.faults],
        "keywords": [{"keyword": o.keyword, "pointer": o.pointer, "becomes": o.becomes} for o in report.occurrences],
        "shortest": None
        if report.shortest is None
        else {
            "text": report.shortest.decode(errors="replace"),
            "bytes": len(report.shortest),
            **({"tokens": report.tokens} if with_tokens else {}),
        },
        "longest": {"bytes": report.longest, "bounded": report.longest is not None} if report.measured else None,
        "seconds": round(report.seconds, 6),
    }
