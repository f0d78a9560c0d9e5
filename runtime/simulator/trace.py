"""What arrives at an engine and when: a trace, and its form as JSON lines.

    {"time": 0.25, "prompt": [1, 15, 7], "output": 40, "tenant": "a", "max_tokens": 128}
    {"time": 2.0, "after": 0, "prompt": [1, 15, 7, 3, 3, 9], "output": 12, "reply": [...]}

The second line is the next turn of the first one's conversation: it arrives 2 seconds after that one's end, so such a
trace is a closed loop, in which users wait for the engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from palmette.errors import ArgumentError, suggestion
from palmette.radix_cache.arrays import as_ints


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A request of a trace.

    time: seconds since the start; with `after`, seconds after the end of that arrival (its index in the trace, smaller
    than this one's). prompt: int32 [n], n > 0, ids from 0 on. output: how many tokens the request makes. max_tokens:
    the most that it asks for, None for just `output`: with more, the engine does not know when the output ends. reply:
    int32 [output], the ids of the output; None where no later prompt contains them. family: the program run that it
    belongs to.
    """

    time: float
    prompt: np.ndarray
    output: int
    tenant: str = ""
    priority: int = 0
    namespace: str = ""
    family: str = ""
    max_tokens: int | None = None
    reply: np.ndarray | None = None
    after: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", as_ints(self.prompt, "prompt"))
        if self.reply is not None:
            object.__setattr__(self, "reply", as_ints(self.reply, "reply"))
        problem = self._problem()
        if problem:
            raise ArgumentError(f"an arrival of a trace {problem}", hint="see palmette.runtime.simulator.trace.Arrival")

    def _problem(self) -> str:
        if not (math.isfinite(self.time) and self.time >= 0):
            return f"has the time {self.time}, which is not 0 or more seconds"
        if not len(self.prompt) or self.prompt.min() < 0:
            return "has a prompt that is empty, or with ids below 0"
        if self.output < 0 or (self.max_tokens is not None and self.max_tokens < self.output):
            return f"makes {self.output} tokens and asks for {self.max_tokens}"
        if self.reply is not None and len(self.reply) != self.output:
            return f"makes {self.output} tokens and has a reply of {len(self.reply)}"
        return ""

    @property
    def asked(self) -> int:
        """The most tokens that the request may make."""
        return self.output if self.max_tokens is None else self.max_tokens


_KNOWN = tuple(field.name for field in fields(Arrival))
_DEFAULTS = {field.name: field.default for field in fields(Arrival)}
_TYPES: dict[str, tuple[type, ...]] = {
    "time": (int, float),
    "prompt": (list,),
    "reply": (list,),
    **dict.fromkeys(("output", "priority", "max_tokens", "after"), (int,)),
    **dict.fromkeys(("tenant", "namespace", "family"), (str,)),
}


def check(trace: Sequence[Arrival]) -> None:
    """ArgumentError where an arrival follows one that is not before it in the trace."""
    for index, arrival in enumerate(trace):
        if arrival.after is not None and not 0 <= arrival.after < index:
            raise ArgumentError(
                f"arrival {index} of the trace comes after number {arrival.after}",
                hint="`after` is the index, from 0, of an earlier arrival",
            )


def read_trace(path: str | Path) -> list[Arrival]:
    """The trace in a file of JSON lines. ArgumentError, with the line, for what is no arrival."""
    trace: list[Arrival] = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    trace.append(_arrival(line, f"{path}:{number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"cannot read the trace {path}: {error}", hint="give a file of JSON lines") from None
    check(trace)
    return trace


def write_trace(path: str | Path, trace: Iterable[Arrival]) -> None:
    """Write a trace as JSON lines. Fields that have their default are left out."""
    with open(path, "w", encoding="utf-8") as file:
        for arrival in trace:
            values = {name: _plain(getattr(arrival, name)) for name in _KNOWN}
            json.dump({name: value for name, value in values.items() if value != _DEFAULTS[name]}, file)
            file.write("\n")


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _arrival(line: str, where: str) -> Arrival:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ArgumentError(f"{where}: this is no JSON: {error}", hint="one JSON object on each line") from None
    hint = "needed: time, prompt, output; known: " + ", ".join(_KNOWN)
    if not isinstance(data, Mapping):
        raise ArgumentError(f"{where}: an arrival is a JSON object", hint=hint)
    for name, value in data.items():
        if name not in _TYPES:
            raise ArgumentError(f"{where}: an arrival has no {name!r}", hint=suggestion(name, _KNOWN))
        if isinstance(value, bool) or not isinstance(value, _TYPES[name]):
            raise ArgumentError(f"{where}: {name} cannot be {value!r}", hint=hint)
        ids = value if isinstance(value, list) else []
        wrong = next((id for id in ids if type(id) is not int), None)
        if wrong is not None and not isinstance(wrong, list):
            raise ArgumentError(f"{where}: {name} must be a list of integers, and {wrong!r} is none", hint=hint)
    missing = [name for name in ("time", "prompt", "output") if name not in data]
    if missing:
        raise ArgumentError(f"{where}: the arrival lacks {' and '.join(missing)}", hint=hint)
    try:
        return Arrival(**data)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{where}: {getattr(error, 'message', error)}", hint=hint) from None
