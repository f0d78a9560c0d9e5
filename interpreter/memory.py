"""What a state has made so far, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from palmette.interpreter.results import Result
from palmette.interpreter.transcript import Transcript


@dataclass(slots=True)
class Memory:
    """A branch begins with a copy of its parent's. `results`: of the variables, by name; `gathered`: the variables that
    are lists of what branches made."""

    transcript: Transcript = field(default_factory=Transcript)
    variables: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    gathered: set[str] = field(default_factory=set)

    def copy(self) -> Memory:
        return Memory(self.transcript.copy(), dict(self.variables), dict(self.results), set(self.gathered))

    def set(self, name: str, value: Any, result: Result = None) -> None:
        """A variable, and what it is the value of; None: no result."""
        self.variables[name] = value
        self.results[name] = result
        self.gathered.discard(name)
