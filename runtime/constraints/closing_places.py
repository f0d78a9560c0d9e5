"""Places in texts whose shortest completions are known: those of automata, and those of schemas."""

from __future__ import annotations

from collections.abc import Hashable

from palmette.runtime.constraints.automaton import Automaton, walk
from palmette.runtime.constraints.schema.machine import State


class Ends:
    """The shortest completions of an automaton's states, kept as they are asked for. longest: of those of all."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.longest = automaton.longest_end()
        self._kept: dict[int, bytes] = {}

    def of(self, state: int) -> bytes:
        found = self._kept.get(state)
        if found is None:
            found = self._kept[state] = self.automaton.shortest_end(state)
        return found


class AutomatonPlace:
    """A state of an automaton over bytes."""

    __slots__ = ("_ends", "_state")

    def __init__(self, ends: Ends, state: int) -> None:
        self._ends = ends
        self._state = state

    @property
    def key(self) -> Hashable:
        return self._ends, self._state

    def after(self, text: bytes) -> AutomatonPlace | None:
        state = walk(self._ends.automaton, self._state, text)
        return AutomatonPlace(self._ends, state) if state >= 0 else None

    def byte(self, byte: int) -> AutomatonPlace | None:
        state = self._ends.automaton.step(self._state, byte)
        return AutomatonPlace(self._ends, state) if state >= 0 else None

    def closing(self) -> bytes:
        return self._ends.of(self._state)

    def bound(self, opens: int) -> int:
        return self._ends.longest

    def uniform(self) -> bool:
        return False

    def loose(self) -> None:
        return None

    def alone(self) -> bool:
        return False


class SchemaPlace:
    """A state of a schema's machine."""

    __slots__ = ("_growth", "_state")

    def __init__(self, state: State, growth: int) -> None:
        """growth: how many bytes longer the completion can be for each array or object that is begun, and for the
        value that is under way."""
        self._state = state
        self._growth = growth

    @property
    def key(self) -> Hashable:
        return self._state

    def after(self, text: bytes) -> SchemaPlace | None:
        state = self._state.walk(text)
        return None if state is None else SchemaPlace(state, self._growth)

    def byte(self, byte: int) -> SchemaPlace | None:
        state = self._state.step(byte)
        return None if state is None else SchemaPlace(state, self._growth)

    def closing(self) -> bytes:
        return self._state.closing()

    def bound(self, opens: int) -> int:
        return self._state.cost + (1 + opens) * self._growth

    def uniform(self) -> bool:
        return self._state.uniform

    def loose(self) -> SchemaPlace | None:
        state = self._state.loose()
        return None if state is None else SchemaPlace(state, self._growth)

    def alone(self) -> bool:
        return self._state.frame.raw is not None
