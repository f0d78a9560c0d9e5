"""`palmette run`: one program, its text as it comes, then a table of its variables."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import palmette
from palmette.cli.app import DEFAULT_MODEL
from palmette.cli.output import console, print_json
from palmette.cli.program import choose_function, load_module, read_arguments, split_target
from palmette.errors import CapabilityError, PalmetteError, TruncatedError
from palmette.interpreter.defaults import backend_for
from palmette.interpreter.events import TextEvent, VariableEvent
from palmette.runtime.protocol import ByChoice


def run_program(target: str, *, model: str | None, pairs: Sequence[str], backend: str | None, as_json: bool) -> None:
    """Run `FILE.py[:function]`. Raises PalmetteError where the program fails with one; any other exception of the
    program's own is shown as its traceback, with exit status 1."""
    if backend is not None:
        raise CapabilityError(
            f"palmette run --backend {backend}: this version cannot run programs on a server",
            hint="leave --backend out: the program then runs on an engine in this process, whose model --model names",
        )
    path, name = split_target(target)
    # What the file prints itself must not get between the JSON.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        with own_traceback(path):
            module = load_module(path)
        function = choose_function(module, path, name)
        arguments = read_arguments(function, pairs)
        palmette.set_default_backend(choose_backend(model))
        with own_traceback(path):
            # A program's own parameter of this name hides the option: its branches then show in the table only.
            stream = function.stream(**arguments, **({} if function.takes("branches") else {"branches": True}))
            if as_json:
                for _ in stream:
                    pass
            else:
                show_stream(stream)
    if as_json:
        print_json(summary(stream.state))
    else:
        table = variables_table(stream.state)
        if table.rows:
            console().print(table)


def choose_backend(model: str | None) -> Any:
    """An engine for `--model`; without it the backend that the file has set, else an engine for the default model."""
    if model is None:
        with suppress(PalmetteError):
            return backend_for(None)
    return palmette.Engine(model or DEFAULT_MODEL)


@contextmanager
def own_traceback(path: Path) -> Iterator[None]:
    """Exceptions that are not palmette's: print the traceback from the user's file on, without our frames above it."""
    try:
        yield
    except PalmetteError:
        raise
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != str(path):
            frame = frame.tb_next
        traceback.print_exception(type(error), error, frame)
        raise typer.Exit(1) from None


def show_stream(events: Iterable[Any]) -> None:
    """The state's text as it comes, what the model wrote in bold. Branches run side by side, so the text of each is
    shown when one of its variables is complete, marked with the branch's place: `[0]`, `[1]`, `[1.0]` ..."""
    screen = Screen(console())
    try:
        for event in events:
            if isinstance(event, TextEvent):
                screen.add(event)
            elif isinstance(event, VariableEvent):
                screen.show_branch(event.branch)
        for branch in list(screen.waiting):
            screen.show_branch(branch)
    finally:  # an error message begins on its own line
        screen.out.print()


@dataclass(slots=True)
class Screen:
    """What was shown, and what is kept back: the text of each branch since one of its variables was complete."""

    out: Console
    waiting: dict[tuple[int, ...], Text] = field(default_factory=dict)
    in_branch: bool = False

    def add(self, event: TextEvent) -> None:
        text = Text(event.text, style="bold" if event.generated else "")
        if event.branch:
            self.waiting.setdefault(event.branch, Text()).append_text(text)
        else:
            self._print(Text("\n") + text if self.in_branch else text)
            self.in_branch = False

    def show_branch(self, branch: tuple[int, ...]) -> None:
        text = self.waiting.pop(branch, None)
        if text is not None:
            self._print(Text(f"\n[{'.'.join(map(str, branch))}] ", style="cyan") + text)
            self.in_branch = True

    def _print(self, text: Text) -> None:
        self.out.print(text, end="", soft_wrap=True)


def named_results(state: Any) -> Iterator[tuple[str, Any]]:
    """(label, result) of all that was generated or selected: `tip[0]` where a variable is a list."""

    def flatten(label: str, result: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(result, list):
            for index, item in enumerate(result):
                yield from flatten(f"{label}[{index}]", item)
        elif result is not None:
            yield label, result

    for name in state.variables:
        with suppress(PalmetteError):  # a variable that the program set itself has no result
            yield from flatten(name, state.result(name))


def variables_table(state: Any) -> Table:
    """One row for each variable, with the tokens of its request."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("variable", style="cyan", no_wrap=True)
    for heading in ("cached", "generated", "forced"):
        table.add_column(heading, justify="right")
    table.add_column("end")
    table.add_column("text", overflow="fold")
    for label, result in named_results(state):
        counts = (result.cached_tokens, result.completion_tokens, result.forced_tokens)
        table.add_row(label, *map(str, counts), result.finish_reason, Text(result.text.strip()))
    return table


def summary(state: Any) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "variables": state.variables,
        "results": [{"name": label, **result_data(result)} for label, result in named_results(state)],
        "text": state.text(),
        "messages": state.messages(),
    }


def result_data(result: Any) -> dict[str, Any]:
    """One result as data; `value` is null where the text was cut before it was a value."""
    keys = ("text", "finish_reason", "prompt_tokens", "cached_tokens", "completion_tokens", "forced_tokens", "seconds")
    data = {key: getattr(result, key) for key in keys}
    try:
        data["value"] = result.value
    except TruncatedError:
        data["value"] = None
    for key in ("probabilities", "logprobs", "label_mass"):
        found = getattr(result, key, None)
        if found is not None:
            data[key] = dict(found.items()) if isinstance(found, ByChoice) else found
    return data
