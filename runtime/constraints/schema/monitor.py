"""What no grammar says is watched: llguidance's masks without the tokens after which nothing valid can come.

The machine of a schema is alive exactly while a valid value can come of the text, so what is left of a mask has no dead
ends: two items that must differ, or that some item must be counted, are seen to before it is too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from palmette.runtime.constraints.closing_places import SchemaPlace
from palmette.runtime.constraints.closing_tables import Tables, tables_of
from palmette.runtime.constraints.determinize import TooLarge
from palmette.runtime.constraints.endings import Endings
from palmette.runtime.constraints.llg import LlgConstraint, LlgMatcher
from palmette.runtime.constraints.schema import strings
from palmette.runtime.constraints.schema.machine import Machine, State
from palmette.runtime.constraints.schema.machine_graph import Unsupported
from palmette.runtime.constraints.schema.scalar_frames import Strand, advance, alive
from palmette.runtime.constraints.schema.shapes import Normal
from palmette.runtime.constraints.vocabulary import Vocabulary

_MOST_KEPT = 64  # states; each a byte for every token
_UNKNOWN, _ALIVE, _DEAD = range(3)


class MonitoredConstraint:
    """A grammar that allows all that is valid and more, and the machine that knows."""

    def __init__(self, llg: LlgConstraint, normal: Normal, vocabulary: Vocabulary, *, whitespace: bool = False) -> None:
        """ValueError when no value is valid; Unsupported (`machine_graph`) and TooLarge (`determinize`) for what the
        machine cannot follow."""
        self.llg = llg
        self.vocabulary = vocabulary
        self.machine = Machine(normal, whitespace=whitespace)
        self._growth = self.machine.growth()
        self.begin = self.machine.start()
        self.nbytes = llg.nbytes
        self.filter = _Filter(tables_of(vocabulary), self.machine)

    def start(self) -> MonitoredMatcher:
        return MonitoredMatcher(self, self.llg.start(), [self.begin], 0)

    def place(self) -> SchemaPlace:
        return SchemaPlace(self.begin, self._growth)

    def endings(self) -> Endings:
        return Endings(self.start(), self.vocabulary)

    def accepts(self, text: bytes) -> bool:
        state = self.begin.walk(text)
        return state is not None and state.complete and self.llg.accepts(text)


def schema_place(normal: Normal, *, whitespace: bool) -> SchemaPlace | None:
    """The start of a schema's texts, for their shortest completions; None where the machine cannot follow them.
    A grammar lets a name that is not listed come twice, and such a text has to be completed too."""
    try:
        machine = Machine(normal, whitespace=whitespace, distinct=False)
        return SchemaPlace(machine.start(), machine.growth())
    except (TooLarge, Unsupported, RecursionError):
        return None


class MonitoredMatcher:
    """llguidance's matcher and the machine's states, one for each token and the first."""

    __slots__ = ("_ends", "_inner", "_of", "_states")

    def __init__(self, of: MonitoredConstraint, inner: LlgMatcher, states: list[State], ends: int) -> None:
        self._of = of
        self._inner = inner
        self._states = states
        self._ends = ends

    def fill(self, row: np.ndarray) -> bool:
        self._inner.fill(row)
        vocabulary = self._of.vocabulary
        if not self._ends:
            row &= ~vocabulary.end_bits
            allowed = np.flatnonzero(np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little"))
            row[:] = vocabulary.row(self._of.filter.living(self._states[-1], allowed))
            if self.allows_end():
                row |= vocabulary.end_bits
        return True

    def advance(self, token: int) -> bool:
        vocabulary = self._of.vocabulary
        if token in vocabulary.end_ids:
            if not self.allows_end() or not self._inner.advance(token):
                return False
            self._ends += 1
            return True
        spelling = vocabulary.token_bytes[token] if 0 <= token < vocabulary.width else None
        state = None if spelling is None or self._ends else self._states[-1].walk(spelling)
        if state is None or not self._inner.advance(token):
            return False
        self._states.append(state)
        return True

    def rollback(self, n: int) -> None:
        self._inner.rollback(n)
        ends = min(n, self._ends)
        self._ends -= ends
        del self._states[len(self._states) - (n - ends) :]

    def fork(self) -> MonitoredMatcher:
        return MonitoredMatcher(self._of, self._inner.fork(), self._states.copy(), self._ends)

    def forced(self, recent: Sequence[int] = ()) -> list[int]:
        kept: list[int] = []
        state = self._states[-1]
        for token in self._inner.forced(recent):
            after = state.walk(self._of.vocabulary.token_bytes[token] or b"")
            if after is None:
                break
            state = after
            kept.append(token)
        return kept

    def allows_end(self) -> bool:
        return self._states[-1].complete and self._inner.allows_end()

    def done(self) -> bool:
        return bool(self._ends) or (self.allows_end() and (self._inner.done() or self._states[-1].last))

    def problem(self) -> str:
        return self._inner.problem()


class _Filter:
    """Which tokens a state can take: found for those that are asked about, and kept for the last few states."""

    def __init__(self, tables: Tables, machine: Machine) -> None:
        self._tables = tables
        self._machine = machine
        self._kept: dict[State, np.ndarray] = {}

    def living(self, state: State, tokens: np.ndarray) -> np.ndarray:
        """Those of `tokens`, int64, behind which a valid value can come."""
        known, strands = self._kept.get(state), state.plain()
        if known is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            known = self._kept[state] = np.zeros(self._tables.vocabulary.width, np.int8)
            if strands is not None:
                self._plain(strands, known)
        asked = tokens[known[tokens] == _UNKNOWN]
        if strands is not None:
            within = asked[self._tables.plain[asked] >= 0]
            self._each(strands, within, known)
            asked = asked[self._tables.plain[asked] < 0]
        if len(asked):
            self._others(state, asked, known)
        living: np.ndarray = tokens[known[tokens] == _ALIVE]
        return living

    def _others(self, state: State, tokens: np.ndarray, known: np.ndarray) -> None:
        """Tokens that are not the inside of a string alone."""
        spelled, inside = self._tables.vocabulary.token_bytes, self._tables.inside[tokens].tolist()
        strands = state.plain() if state.evenhanded else None
        behind: dict[tuple[frozenset[Any], bytes], bool] = {}
        for token, at in zip(tokens.tolist(), inside, strict=True):
            text = spelled[token] or b""
            content, quote, rest = text.partition(b'"')
            key = None
            if strands is not None and quote and b"\\" not in content and b'"' not in rest[:-1]:
                key = _ends(strands, content)
            if key is not None and (key, rest) in behind:
                alive = behind[key, rest]
            elif key is not None and not key:
                alive = False
            else:
                alive = _lives(state, text, at)
                if key is not None:
                    behind[key, rest] = alive
            known[token] = _ALIVE if alive else _DEAD

    def _plain(self, strands: tuple[Strand, ...], known: np.ndarray) -> None:
        """What can be said of all plain text at once."""
        sizes = self._tables.plain
        for _, machine, state, avoided in strands:
            if machine.free(state):
                # Any text has completions without end, so that those to be avoided are not all of them.
                known[self._tables.inside == 0] = _ALIVE
                return
            if self._machine.costs.uniform(machine) and not _within_character(machine, state):
                room, at = 0, state
                while room <= int(sizes.max(initial=0)) and (at := machine.step(at, 0x61)) is not None:
                    room += 1
                # Where no more than these characters fit, each text is the whole rest, and may be one to be avoided.
                known[(sizes >= 0) & (sizes <= (room - 1 if avoided else room))] = _ALIVE

    def _each(self, strands: tuple[Strand, ...], tokens: np.ndarray, known: np.ndarray) -> None:
        spelled = self._tables.vocabulary.token_bytes
        for token in tokens.tolist():
            text = spelled[token] or b""
            ways = [advance(strand, text) for strand in strands]
            known[token] = _ALIVE if any(way is not None and alive(way) for way in ways) else _DEAD


def _lives(state: State, text: bytes, inside: int) -> bool:
    """Whether the state takes the text, what of it stands behind `inside` being fit for any string. Most come soon to a
    state that takes whatever is."""
    last = inside if b"\\" in text else len(text)
    for at, byte in enumerate(text):
        if inside <= at <= last and state.free:
            return True
        after = state.step(byte)
        if after is None:
            return False
        state = after
    return True


def _ends(strands: tuple[Strand, ...], content: bytes) -> frozenset[Any] | None:
    """The goals of the alternatives that end behind the content; None where one of them has few strings, so that it
    matters later which was taken."""
    goals = set()
    for strand in strands:
        way = advance(strand, content)
        if way is not None and b"" not in way[3] and way[1].final(way[2]):
            if not (way[1] is strings.LITERAL or way[1].free(way[2])):
                return None
            goals.add(way[0])
    return frozenset(goals)


def _within_character(machine: Any, state: Any) -> bool:
    rest = strings.shortest(machine, state, strings.NONE)
    return rest is not None and rest[:1] >= b"\x80" and rest[:1] < b"\xc0"
