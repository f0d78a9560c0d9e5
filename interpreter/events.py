"""What a streamed run yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class TextEvent:
    """More text. Joined, those with `branch == ()` are the state's text. `name` is the variable that it belongs to;
    `generated` is False for what the program wrote itself. `branch`: index at each fork, from the outermost."""

    text: str
    name: str | None = None
    generated: bool = False
    branch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VariableEvent:
    """A variable has its value."""

    name: str
    value: Any
    branch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The run failed; the same error is raised next."""

    error: BaseException


Event: TypeAlias = "TextEvent | VariableEvent | ErrorEvent"
