"""Unions of shapes by type. The shapes are those of shapes.py, but for objects, whose members are found by name."""

from __future__ import annotations

from typing import Any

from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    ANYTHING_NODE,
    NOTHING_NODE,
    Arrays,
    Fixed,
    Node,
    Numbers,
    Strings,
    Text,
)

Classes = tuple[tuple[Text, Node], ...]
OPEN: Classes = ((ANY_TEXT, ANYTHING_NODE),)


class Entries:
    """Objects (shapes.Objects), with members by name. order: the names that a schema lists, in its order; a required
    name is always among the members; what `others` say holds for names that are no members."""

    __slots__ = ("least", "members", "most", "order", "others", "required", "some")

    def __init__(
        self,
        members: dict[str, Node],
        required: dict[str, None],
        *,
        order: tuple[str, ...] = (),
        others: Classes = OPEN,
        least: int = 0,
        most: int | None = None,
        some: Classes = (),
    ) -> None:
        self.members = members
        self.required = required
        self.order = order
        self.others = others
        self.least = least
        self.most = most
        self.some = some

    def value(self, name: str) -> Node:
        """The node of the values that the property may have."""
        found = self.members.get(name)
        return found if found is not None else self.other(name)

    def other(self, name: str) -> Node:
        for text, node in self.others:
            if text is ANY_TEXT or texts.contains(text, name):
                return node
        return NOTHING_NODE

    def signature(self) -> tuple[Any, ...]:
        return (
            frozenset(self.members.items()),
            frozenset(self.required),
            tuple((id(t) if t.only is None else t.only, n) for t, n in self.others),
            self.least,
            self.most,
            tuple((id(t) if t.only is None else t.only, n) for t, n in self.some),
        )


ANY_NUMBERS, ANY_STRINGS, ANY_ARRAYS = Numbers(), Strings(), Arrays()
ANY_ENTRIES = Entries({}, {})
Slot = tuple[Any, ...]
# The shapes of each type (values.NULL ...).
Union = tuple[Slot, Slot, Slot, Slot, Slot, Slot, Slot]
FULL: Union = (
    (Fixed("null"),),
    (Fixed("true"),),
    (Fixed("false"),),
    (ANY_NUMBERS,),
    (ANY_STRINGS,),
    (ANY_ARRAYS,),
    (ANY_ENTRIES,),
)
EMPTY: Union = ((), (), (), (), (), (), ())


def only(slot: int, *shapes: Any) -> Union:
    """The union of these shapes of one type."""
    return (*EMPTY[:slot], shapes, *EMPTY[slot + 1 :])  # type: ignore[return-value]


def besides(slot: int, *shapes: Any) -> Union:
    """These shapes of one type, and all values of the other types."""
    return (*FULL[:slot], shapes, *FULL[slot + 1 :])  # type: ignore[return-value]


def size(union: Union) -> int:
    return sum(map(len, union))
