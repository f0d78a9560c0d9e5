"""The parts of a JSON text that can be under way, each with the alternatives of the schema that are alive in it.

A frame is a value, literal, number, string, array or object that has begun, a name, or the place before a value. It
knows the goals that it may satisfy, and takes the next byte to

    another frame                    the same value goes on
    Push(wait, frame)                an item, a name or a member's value begins inside it
    Pop(goals, raw, again)           it is over, and satisfies these; again: the byte belongs to what comes behind

Frames know nothing of what they stand in. `raw` is the text of the value so far where somebody outside needs to know
the value (`uniqueItems`), else None, so that equal states are one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from palmette.runtime.constraints.schema.shapes import Arrays, Fixed, Numbers, Objects

if TYPE_CHECKING:
    from palmette.runtime.constraints.schema.costs import Goal
    from palmette.runtime.constraints.schema.machine import Machine

WHITESPACE = frozenset(b" \t\n\r")


class Push(NamedTuple):
    wait: Wait
    frame: Frame


class Pop(NamedTuple):
    goals: frozenset[Any]
    raw: bytes | None
    again: bool


Outcome = "Frame | Push | Pop | None"


class Frame:
    """Made by `Machine.frame` only, which has one of each."""

    __slots__ = ("_finish", "_steps", "machine", "raw")

    def __init__(self, machine: Machine, raw: bytes | None) -> None:
        self.machine = machine
        self.raw = raw
        self._steps: dict[int, Frame | Push | Pop | None] = {}
        self._finish: dict[Any, bytes] | None = None

    def step(self, byte: int) -> Frame | Push | Pop | None:
        try:
            return self._steps[byte]
        except KeyError:
            found = self._steps[byte] = self._step(byte)
            return found

    def finish(self) -> dict[Any, bytes]:
        """The goals that can still be satisfied, each with the shortest rest that does it."""
        if self._finish is None:
            self._finish = self._finishes()
        return self._finish

    def complete(self) -> frozenset[Any]:
        """The goals that are satisfied if the text ends here."""
        return frozenset()

    def _step(self, byte: int) -> Frame | Push | Pop | None:
        raise NotImplementedError

    def _finishes(self) -> dict[Any, bytes]:
        raise NotImplementedError

    def longer(self, more: bytes) -> bytes | None:
        """`raw` and what is added to it."""
        return None if self.raw is None else self.raw + more


class Wait:
    """What goes on when the frame inside it is over. Made by `Machine.wait` only."""

    __slots__ = ("machine", "raw")

    def __init__(self, machine: Machine, raw: bytes | None) -> None:
        self.machine = machine
        self.raw = raw

    def resume(self, goals: frozenset[Any], raw: bytes | None) -> Frame | None:
        """The frame behind a part that satisfied these goals, and was spelled so where that is known."""
        raise NotImplementedError

    def evenhanded(self) -> bool:
        """See `State.evenhanded`."""
        raise NotImplementedError


def shortest_of(ways: Iterable[tuple[Any, bytes | None]]) -> dict[Any, bytes]:
    """Per goal the shortest text."""
    best: dict[Any, bytes] = {}
    for goal, text in ways:
        if text is not None and (goal not in best or len(text) < len(best[goal])):
            best[goal] = text
    return best


class Done(Frame):
    """Behind the whole text."""

    __slots__ = ()

    def complete(self) -> frozenset[Any]:
        return frozenset({None})

    def _step(self, byte: int) -> Frame | None:
        return self if self.machine.whitespace and byte in WHITESPACE else None

    def _finishes(self) -> dict[Any, bytes]:
        return {None: b""}


class Before(Frame):
    """Before a value that is to satisfy one of the goals, each of which some value does."""

    __slots__ = ("goals",)

    def __init__(self, machine: Machine, raw: bytes | None, goals: tuple[Goal, ...]) -> None:
        super().__init__(machine, raw)
        self.goals = goals

    def _finishes(self) -> dict[Any, bytes]:
        return shortest_of((goal, self.machine.costs.shortest(goal)) for goal in self.goals)

    def _step(self, byte: int) -> Frame | None:
        machine = self.machine
        if byte in WHITESPACE:
            return self if machine.whitespace else None
        raw = self.longer(bytes([byte]))
        parts = [(goal, part) for goal in self.goals for part in machine.graph.parts(goal[0])]
        if byte == 0x22:
            return machine.string(raw, parts)
        if byte == 0x5B:
            arrays = [(g, machine.costs.arrays(p), g[1]) for g, p in parts if isinstance(p, Arrays)]
            return machine.array([(g, rules, rules.start(out)) for g, rules, out in arrays], raw, first=True)
        if byte == 0x7B:
            objects = [(g, machine.costs.objects(p), g[1]) for g, p in parts if isinstance(p, Objects)]
            return machine.object([(g, rules, rules.start(out)) for g, rules, out in objects], raw, first=True)
        if byte == 0x2D or 0x30 <= byte <= 0x39:
            return machine.number(raw, [(g, p) for g, p in parts if isinstance(p, Numbers)], chr(byte))
        word = {0x6E: "null", 0x74: "true", 0x66: "false"}.get(byte)
        if word is None:
            return None
        goals = frozenset(g for g, p in parts if isinstance(p, Fixed) and p.text == word and (word,) not in g[1])
        return machine.frame(Literal, raw, word[1:].encode(), goals) if goals else None


class Literal(Frame):
    """Inside null, true or false: what is left of it."""

    __slots__ = ("goals", "rest")

    def __init__(self, machine: Machine, raw: bytes | None, rest: bytes, goals: frozenset[Hashable]) -> None:
        super().__init__(machine, raw)
        self.rest = rest
        self.goals = goals

    def _finishes(self) -> dict[Any, bytes]:
        return dict.fromkeys(self.goals, self.rest)

    def _step(self, byte: int) -> Frame | Pop | None:
        if byte != self.rest[0]:
            return None
        raw = self.longer(bytes([byte]))
        if len(self.rest) == 1:
            return Pop(self.goals, raw, False)
        return self.machine.frame(Literal, raw, self.rest[1:], self.goals)
