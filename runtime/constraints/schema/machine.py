"""A machine over the bytes of a JSON text that is alive exactly while the text can become a valid value.

States are immutable and each is there once, so a step that was taken before is a look-up. A state is a frame (see
`frames.py`) and what waits around it:

    {"a":[1,2        Number(2)  in  ItemWait  in  MemberWait

Each frame runs once for all alternatives that the schema leaves open, and what it satisfies when it is over decides
which alternatives of what waits go on: the run of a tree automaton over the text. No alternative is ever offered that
could not be completed, so a state is alive if its frame is, and the shortest completion is put together frame by frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from palmette.runtime.constraints.determinize import TooLarge
from palmette.runtime.constraints.schema.container_frames import Array, ArrayStrand, NameWait, Object, ObjectStrand
from palmette.runtime.constraints.schema.costs import Costs, Goal, numbers_of
from palmette.runtime.constraints.schema.frames import Before, Done, Frame, Pop, Push, Wait
from palmette.runtime.constraints.schema.machine_graph import Graph, Part, Unsupported
from palmette.runtime.constraints.schema.machine_numbers import shrunk
from palmette.runtime.constraints.schema.scalar_frames import PLAIN, Number, Strand, String, alike, alive, number_rest
from palmette.runtime.constraints.schema.shapes import Normal, Numbers, Strings

_MOST_KEPT = 200_000  # frames and states; beyond that they are forgotten, and made anew where they are met again
_DEEPEST = 128
# Shapes and ways to an end that are looked at: before a text begins, and for a byte of it.
_START_WORK, _STEP_WORK = 200_000, 20_000

F = TypeVar("F", bound=Frame)
W = TypeVar("W", bound=Wait)


class Outside:
    """What waits around a frame, innermost first."""

    __slots__ = ("_rests", "depth", "outside", "wait")

    def __init__(self, wait: Wait, outside: Outside | None) -> None:
        self.wait = wait
        self.outside = outside
        self.depth: int = 1 if outside is None else outside.depth + 1
        self._rests: dict[tuple[Any, bytes | None], bytes | None] = {}

    def rest(self, goal: Any, raw: bytes | None) -> bytes | None:
        """The shortest rest of the whole text behind a frame that satisfied the goal."""
        key = (goal, raw)
        if key not in self._rests:
            frame = self.wait.resume(frozenset({goal}), raw)
            self._rests[key] = None if frame is None else closing_of(frame, self.outside)
        return self._rests[key]


def closing_of(frame: Frame, outside: Outside | None) -> bytes | None:
    best: bytes | None = None
    for goal, text in frame.finish().items():
        if best is not None and len(text) >= len(best):
            continue
        rest = b"" if outside is None else outside.rest(goal, None if frame.raw is None else frame.raw + text)
        if rest is not None and (best is None or len(text) + len(rest) < len(best)):
            best = text + rest
    return best


class State:
    """A place in a text. `step` to go on; compared by identity."""

    __slots__ = ("_closing", "_last", "_next", "_of", "frame", "outside")

    def __init__(self, of: Machine, frame: Frame, outside: Outside | None) -> None:
        self._of = of
        self.frame = frame
        self.outside = outside
        self._next: dict[int, State | None] = {}
        self._closing: bytes | None = None
        self._last: bool | None = None

    def step(self, byte: int) -> State | None:
        """The state behind one more byte; None exactly when no valid text begins so (or what does is deeper nested, has
        a longer number or needs more of the machine than its budgets allow)."""
        try:
            return self._next[byte]
        except KeyError:
            self._of.costs.begin(_STEP_WORK)
            try:
                found = self._step(byte)
            except (Unsupported, TooLarge):
                found = None  # beyond the budget: not a way that anybody need go
            self._next[byte] = found
            return found

    def walk(self, text: bytes) -> State | None:
        """The state behind all of `text`, or None."""
        state: State | None = self
        for byte in text:
            if state is None:
                break
            state = state.step(byte)
        return state

    @property
    def complete(self) -> bool:
        """Whether the text is a valid value."""
        return self.outside is None and bool(self.frame.complete())

    def closing(self) -> bytes:
        """A shortest text that makes it one."""
        if self._closing is None:
            self._of.costs.begin(_START_WORK)
            found = closing_of(self.frame, self.outside)
            assert found is not None, "only states that can be completed are made"
            self._closing = found
        return self._closing

    @property
    def cost(self) -> int:
        return len(self.closing())

    @property
    def uniform(self) -> bool:
        """Whether this is inside a string, between two characters, of which nothing but the length is asked."""
        frame = self.frame
        return isinstance(frame, String) and frame.uniform()

    @property
    def free(self) -> bool:
        """Whether this is inside a string, between two characters, that can be completed after any others."""
        frame = self.frame
        return isinstance(frame, String) and frame.mode == PLAIN and any(m.free(at) for _, m, at, _ in frame.strands)

    @property
    def evenhanded(self) -> bool:
        """Whether this is inside a string behind whose end it makes no difference which it was, but for the goals that
        it satisfies, as long as no other string ends and others are plenty."""
        return self.plain() is not None and (self.outside is None or self.outside.wait.evenhanded())

    @property
    def last(self) -> bool:
        """Whether nothing can follow."""
        if self._last is None:
            self._last = all(self.step(byte) is None for byte in range(256))
        return self._last

    def plain(self) -> tuple[Strand, ...] | None:
        """Inside a string, between two characters or within one: its alternatives; None elsewhere."""
        frame = self.frame
        return frame.strands if isinstance(frame, String) and frame.mode == PLAIN else None

    def loose(self) -> State | None:
        """Inside a name of which nearly all may come: the state behind a character with which no listed one goes on."""
        frame = self.frame
        if not isinstance(frame, String) or self.outside is None or not isinstance(self.outside.wait, NameWait):
            return None
        if not any(self._of.costs.cofinite(machine) for _, machine, *_ in frame.strands) or frame.within_character():
            return None
        for byte in b"abcdefghijklmnopqrstuvwxyz":
            state = self.step(byte)
            strands = None if state is None else state.plain()
            if strands is not None and all(self._of.costs.cofinite(machine) for _, machine, *_ in strands):
                return state
        return None

    def _step(self, byte: int) -> State | None:
        frame, outside = self.frame, self.outside
        while True:
            to = frame.step(byte)
            if to is None:
                return None
            if isinstance(to, Push):
                frame, outside = to.frame, self._of.outside(to.wait, outside)
                break
            if not isinstance(to, Pop):
                frame = to
                break
            if outside is None:
                after: Frame | None = self._of.done
            else:
                after = outside.wait.resume(to.goals, to.raw)
                outside = outside.outside
            if after is None:
                return None
            frame = after
            if not to.again:
                break
        if outside is not None and outside.depth > _DEEPEST:
            return None
        return self._of.state(frame, outside)


class Machine:
    """The texts of a normal form. Compact JSON, or with white space anywhere between the signs."""

    def __init__(self, normal: Normal, *, whitespace: bool, distinct: bool = True) -> None:
        """distinct: no name may come twice in an object. Unsupported, now or later, for what the shapes cannot say;
        TooLarge (`determinize`) for strings beyond the budget."""
        self.graph = Graph(normal)
        self.costs = Costs(self.graph, distinct=distinct)
        self.whitespace = whitespace
        self._nodes = len(normal.nodes)
        self._root: Goal = (normal.root, frozenset())
        self._frames: dict[tuple[Any, ...], Frame] = {}
        self._waits: dict[tuple[Any, ...], Wait] = {}
        self._outsides: dict[tuple[Wait, Outside | None], Outside] = {}
        self._states: dict[tuple[Frame, Outside | None], State] = {}
        self.done = Done(self, None)

    def shortest(self) -> bytes | None:
        """A shortest valid text; None when there is none."""
        self.costs.begin(_START_WORK)
        return self.costs.shortest(self._root)

    def growth(self) -> int:
        """See `Costs.growth`, for all nodes of the normal form."""
        self.costs.begin(_START_WORK)
        return self.costs.growth(self._nodes)

    def start(self) -> State:
        """ValueError when no value is valid."""
        if self.shortest() is None:
            raise ValueError("no value is valid")
        return self.state(self.frame(Before, None, (self._root,)), None)

    # -- one of each

    def frame(self, kind: type[F], raw: bytes | None, *fields: Any) -> F:
        key = (kind, raw, *fields)
        found = self._frames.get(key)
        if found is None:
            self._bound()
            found = self._frames[key] = kind(self, raw, *fields)
        return found  # type: ignore[return-value]

    def wait(self, kind: type[W], raw: bytes | None, *fields: Any) -> W:
        key = (kind, raw, *fields)
        found = self._waits.get(key)
        if found is None:
            found = self._waits[key] = kind(self, raw, *fields)
        return found  # type: ignore[return-value]

    def outside(self, wait: Wait, outside: Outside | None) -> Outside:
        key = (wait, outside)
        found = self._outsides.get(key)
        if found is None:
            found = self._outsides[key] = Outside(wait, outside)
        return found

    def state(self, frame: Frame, outside: Outside | None) -> State:
        key = (frame, outside)
        found = self._states.get(key)
        if found is None:
            self._bound()
            found = self._states[key] = State(self, frame, outside)
        return found

    def _bound(self) -> None:
        if len(self._frames) + len(self._states) > _MOST_KEPT:
            for kept in (self._frames, self._waits, self._outsides, self._states):
                kept.clear()

    # -- frames of what is alive

    def array(self, strands: Iterable[ArrayStrand], raw: bytes | None, *, first: bool) -> Array | None:
        left = tuple(s for s in strands if not first or s[1].tail(s[2], True) is not None)
        return self.frame(Array, raw, left, first) if left else None

    def object(self, strands: Iterable[ObjectStrand], raw: bytes | None, *, first: bool) -> Object | None:
        left = tuple(s for s in strands if not first or s[1].tail(s[2], True) is not None)
        return self.frame(Object, raw, left, first, False) if left else None

    def number(self, raw: bytes | None, parts: Sequence[tuple[Any, Numbers]], text: str) -> Number | None:
        left: list[tuple[Any, Numbers]] = []
        for goal, part in parts:
            s = shrunk(part, numbers_of(goal[1])) if len(text) == 1 else part
            if s is not None and number_rest(s, text) is not None:
                left.append((goal, s))
        alternatives = tuple(left)
        return (
            self.frame(Number, raw, alternatives, alike(alternatives, text) if raw is None else text) if left else None
        )

    def string(self, raw: bytes | None, parts: Sequence[tuple[Goal, Part]]) -> String | None:
        strands: list[Strand] = []
        for goal, part in parts:
            if isinstance(part, Strings) and (machine := self.costs.machine(part.text)) is not None:
                out = frozenset(v.encode("utf-8", "surrogatepass") for v in goal[1] if isinstance(v, str))
                strand = (goal, machine, machine.start, out)
                if alive(strand):
                    strands.append(strand)
        return self.frame(String, raw, tuple(strands), 0, "", 0) if strands else None
