"""The frames of arrays and objects, and what waits in them while a part is under way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from palmette.runtime.constraints.schema import strings
from palmette.runtime.constraints.schema.array_rules import ArrayProgress, ArrayRules, ItemChoice
from palmette.runtime.constraints.schema.frames import WHITESPACE, Before, Frame, Pop, Push, Wait, shortest_of
from palmette.runtime.constraints.schema.machine_values import parse, quoted
from palmette.runtime.constraints.schema.object_rules import MemberChoice, ObjectProgress, ObjectRules
from palmette.runtime.constraints.schema.scalar_frames import Strand, String

if TYPE_CHECKING:
    from palmette.runtime.constraints.schema.machine import Machine

ArrayStrand = tuple[Any, ArrayRules, ArrayProgress]  # (goal, rules, progress)
ObjectStrand = tuple[Any, ObjectRules, ObjectProgress]
ItemStrand = tuple[Any, ArrayRules, ArrayProgress, ItemChoice]
MemberStrand = tuple[Any, ObjectRules, ObjectProgress, MemberChoice]


class Array(Frame):
    """Between the items of an array. first: none has come."""

    __slots__ = ("first", "strands")

    def __init__(self, machine: Machine, raw: bytes | None, strands: tuple[ArrayStrand, ...], first: bool) -> None:
        super().__init__(machine, raw)
        self.strands = strands
        self.first = first

    def _finishes(self) -> dict[Any, bytes]:
        return shortest_of((goal, rules.tail(p, self.first)) for goal, rules, p in self.strands)

    def _step(self, byte: int) -> Frame | Push | Pop | None:
        if byte in WHITESPACE:
            return self if self.machine.whitespace else None
        if byte == 0x5D:
            goals = frozenset(goal for goal, rules, p in self.strands if rules.can_end(p))
            return Pop(goals, self.longer(b"]"), False) if goals else None
        if self.first:
            inside = self._item()
            frame = inside.frame.step(byte) if inside is not None else None
            if inside is None or frame is None:
                return None
            assert not isinstance(frame, Push | Pop), "a value begins with one frame"
            return Push(inside.wait, frame)
        return self._item() if byte == 0x2C else None

    def _item(self) -> Push | None:
        """The place before the next item; None where there is no next."""
        items = [(g, rules, p, c) for g, rules, p in self.strands for c in rules.open(p)]
        if not items:
            return None
        known = self.raw is not None or any(rules.needs_values(p) for _, rules, p, _ in items)
        goals = tuple(dict.fromkeys(c.goal for *_, c in items))
        before = self.machine.frame(Before, b"" if known else None, goals)
        return Push(self.machine.wait(ItemWait, self.longer(b"" if self.first else b","), tuple(items)), before)


class ItemWait(Wait):
    """An array while an item is under way."""

    __slots__ = ("items",)

    def __init__(self, machine: Machine, raw: bytes | None, items: tuple[ItemStrand, ...]) -> None:
        super().__init__(machine, raw)
        self.items = items

    def resume(self, goals: frozenset[Any], raw: bytes | None) -> Frame | None:
        value = None if raw is None else parse(raw)
        strands: dict[ArrayStrand, None] = {}
        for goal, rules, p, choice in self.items:
            if choice.goal in goals:
                then = rules.after(choice, value if rules.needs_values(p) else None)
                if rules.tail(then, False) is not None:
                    strands[goal, rules, then] = None
        text = None if self.raw is None or raw is None else self.raw + raw
        return self.machine.array(list(strands), text, first=False)

    def evenhanded(self) -> bool:
        return all(rules.evenhanded(p) for _, rules, p, _ in self.items)


class Object(Frame):
    """Between the members of an object, or before a name that must come."""

    __slots__ = ("first", "must", "strands")

    def __init__(
        self, machine: Machine, raw: bytes | None, strands: tuple[ObjectStrand, ...], first: bool, must: bool
    ) -> None:
        """first: no member has come. must: a comma has."""
        super().__init__(machine, raw)
        self.strands = strands
        self.first = first
        self.must = must

    def _finishes(self) -> dict[Any, bytes]:
        if not self.must:
            return shortest_of((goal, rules.tail(p, self.first)) for goal, rules, p in self.strands)
        return shortest_of((m[0], b'"' + name_rest(self.machine, m)) for m in self._members())

    def _members(self) -> list[MemberStrand]:
        return [(g, rules, p, c) for g, rules, p in self.strands for c in rules.open(p)]

    def _step(self, byte: int) -> Frame | Push | Pop | None:
        if byte in WHITESPACE:
            return self if self.machine.whitespace else None
        if byte == 0x22 and (self.first or self.must):
            return self._name()
        if self.must:
            return None
        if byte == 0x7D:
            goals = frozenset(goal for goal, rules, p in self.strands if rules.can_end(p))
            return Pop(goals, self.longer(b"}"), False) if goals else None
        if byte == 0x2C and not self.first:
            left = tuple(strand for strand in self.strands if strand[1].open(strand[2]))
            return self.machine.frame(Object, self.longer(b","), left, False, True) if left else None
        return None

    def _name(self) -> Push | None:
        members = self._members()
        strands: list[Strand] = []
        for i, (_, _, _, choice) in enumerate(members):
            if choice.name is not None:
                name = choice.name.encode("utf-8", "surrogatepass")
                strands.append((i, strings.LITERAL, name, strings.NONE))
            else:
                assert choice.names is not None
                machine = self.machine.costs.machine(choice.names)
                assert machine is not None, "a class without names is no choice"
                out = frozenset(name.encode("utf-8", "surrogatepass") for name in choice.but)
                strands.append((i, machine, machine.start, out))
        if not members:
            return None
        wait = self.machine.wait(NameWait, self.longer(b""), tuple(members))
        return Push(wait, self.machine.frame(String, b'"', tuple(strands), 0, "", 0))


class NameWait(Wait):
    """An object while a name is under way."""

    __slots__ = ("members",)

    def __init__(self, machine: Machine, raw: bytes | None, members: tuple[MemberStrand, ...]) -> None:
        super().__init__(machine, raw)
        self.members = members

    def resume(self, goals: frozenset[Any], raw: bytes | None) -> Frame | None:
        assert raw is not None
        name = json.loads(raw)
        chosen = [self.members[i] for i in sorted(goals)]
        named = [(goal, rules, p, rules.named(choice, name)) for goal, rules, p, choice in chosen]
        left = tuple(m for m in named if member_tail(self.machine, m) is not None)
        text = None if self.raw is None else self.raw + raw
        return self.machine.frame(Colon, text, left) if left else None

    def evenhanded(self) -> bool:
        return not any(p.apart or p.pending for _, _, p, _ in self.members)


class Colon(Frame):
    """Between a name and its value."""

    __slots__ = ("members",)

    def __init__(self, machine: Machine, raw: bytes | None, members: tuple[MemberStrand, ...]) -> None:
        super().__init__(machine, raw)
        self.members = members

    def _finishes(self) -> dict[Any, bytes]:
        return shortest_of((m[0], member_tail(self.machine, m)) for m in self.members)

    def _step(self, byte: int) -> Frame | Push | None:
        if byte in WHITESPACE:
            return self if self.machine.whitespace else None
        if byte != 0x3A:
            return None
        known = self.raw is not None or any(rules.needs_values(p) for _, rules, p, _ in self.members)
        goals = tuple(dict.fromkeys(c.goal for *_, c in self.members))
        before = self.machine.frame(Before, b"" if known else None, goals)
        return Push(self.machine.wait(MemberWait, self.longer(b":"), self.members), before)


class MemberWait(Wait):
    """An object while a member's value is under way."""

    __slots__ = ("members",)

    def __init__(self, machine: Machine, raw: bytes | None, members: tuple[MemberStrand, ...]) -> None:
        super().__init__(machine, raw)
        self.members = members

    def resume(self, goals: frozenset[Any], raw: bytes | None) -> Frame | None:
        strands: dict[ObjectStrand, None] = {}
        value = None
        for goal, rules, p, choice in self.members:
            if choice.goal in goals:
                if value is None and rules.needs_values(p):
                    assert raw is not None
                    value = parse(raw)
                then = rules.after(choice, value)
                if rules.tail(then, False) is not None:
                    strands[goal, rules, then] = None
        text = None if self.raw is None or raw is None else self.raw + raw
        return self.machine.object(list(strands), text, first=False)

    def evenhanded(self) -> bool:
        return not any(p.apart for _, _, p, _ in self.members)


def member_tail(machine: Machine, member: MemberStrand) -> bytes | None:
    """The shortest rest of the object behind a name."""
    _, rules, p, choice = member
    value = machine.costs.shortest(choice.goal)
    if value is None:
        return None
    tail = rules.tail(rules.after(choice, parse(value) if rules.needs_values(p) else None), False)
    return None if tail is None else b":" + value + tail


def name_rest(machine: Machine, member: MemberStrand) -> bytes:
    """The shortest rest of the object behind the quote that opens a name."""
    goal, rules, p, choice = member
    name = choice.name if choice.name is not None else rules.shortest_name(choice)
    assert name is not None, "a class without names is no choice"
    tail = member_tail(machine, (goal, rules, p, rules.named(choice, name)))
    assert tail is not None, "only open choices are looked at"
    return quoted(name.encode("utf-8", "surrogatepass")) + b'"' + tail
