"""The longest text under each node: the greatest fixed point over the normal form.

All nodes begin without a bound. One gets its bound once all those that its texts may hold have theirs, so that what
leads back to itself, and what holds such a thing, never does (Kahn 1962, read as a fixed point). No shorter bound is
right everywhere: a text that a grammar of ours allows, without optional white space, has at most so many bytes.

A character counts as its longest spelling: 12 bytes (`\\ud83d\\ude00`) where a string is asked for its length alone,
since any character may be escaped there, else what one way of writing each takes. Where members are counted, and where
items must differ, only their number is made use of, not which of them go together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from json import dumps
from math import ceil, floor
from time import monotonic

import numpy as np

from palmette.runtime.constraints.determinize import Characters, TooLarge, characters
from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.number_regex import spelling, step
from palmette.runtime.constraints.schema.shapes import (
    NOTHING_NODE,
    Anything,
    Arrays,
    Fixed,
    Node,
    Normal,
    Numbers,
    Objects,
    Shape,
    Strings,
    Text,
)
from palmette.runtime.constraints.schema.text_machine import MAX_STATES, SECONDS
from palmette.runtime.constraints.schema.text_terminals import written

_ANY_CHARACTER = 12
_MOST_CELLS = 20_000_000  # of lengths and states; beyond that all characters count as the longest one
_MOST_TRIES = 10_000  # numbers at the end of an interval that are none of the set
_FAR = -(1 << 40)


def longest(normal: Normal) -> int | None:
    """Bytes of the longest text under the root; None: there are texts of any length."""
    bounds: dict[Node, int | None] = {}
    holders: dict[Node, list[Node]] = {}
    waiting: dict[Node, int] = {}
    ready = []
    for node in _reached(normal):
        parts = _parts(normal.nodes[node])
        waiting[node] = len(parts)
        for part in parts:
            holders.setdefault(part, []).append(node)
        if not parts:
            ready.append(node)
    while ready:
        node = ready.pop()
        bounds[node] = _most(_shape(shape, normal, bounds) for shape in normal.nodes[node])
        for holder in holders.get(node, ()):
            waiting[holder] -= 1
            if not waiting[holder]:
                ready.append(holder)
    return bounds.get(normal.root)


def _reached(normal: Normal) -> list[Node]:
    order = [normal.root]
    seen = {normal.root}
    for node in order:  # grows as it is walked
        for part in _parts(normal.nodes[node]):
            if part not in seen:
                seen.add(part)
                order.append(part)
    return order


def _parts(shapes: Iterable[Shape]) -> set[Node]:
    """The nodes whose values stand in a value of one of the shapes."""
    found: set[Node] = set()
    for shape in shapes:
        if isinstance(shape, Arrays):
            items, most = _items(shape)
            found.update(items)
            if most is None or most > len(items):
                found.add(shape.rest)
        elif isinstance(shape, Objects) and shape.most != 0:
            found.update(m.node for m in shape.members)
            found.update(o.node for o in shape.others)
    return found - {NOTHING_NODE}


def _most(bounds: Iterable[int | None]) -> int | None:
    """The greatest; None is greater than all."""
    most = 0
    for bound in bounds:
        if bound is None:
            return None
        most = max(most, bound)
    return most


def _sum(bounds: Iterable[int | None]) -> int | None:
    total = 0
    for bound in bounds:
        if bound is None:
            return None
        total += bound
    return total


def _shape(shape: Shape, normal: Normal, bounds: dict[Node, int | None]) -> int | None:
    if isinstance(shape, Anything):
        return None
    if isinstance(shape, Fixed):
        return len(shape.text)
    if isinstance(shape, Numbers):
        return _number(shape)
    if isinstance(shape, Strings):
        return text_bound(shape.text)
    if isinstance(shape, Arrays):
        return _array(shape, normal, bounds)
    return _object(shape, bounds)


# -- arrays and objects


def _items(shape: Arrays) -> tuple[tuple[Node, ...], int | None]:
    """The prefix as far as it may come, and how many items there are at the most."""
    prefix, most = shape.prefix, shape.most
    if NOTHING_NODE in prefix:
        prefix = prefix[: prefix.index(NOTHING_NODE)]
        most = len(prefix) if most is None else min(most, len(prefix))
    if shape.rest == NOTHING_NODE:
        most = len(prefix) if most is None else min(most, len(prefix))
    return (prefix if most is None else prefix[:most]), most


def _array(shape: Arrays, normal: Normal, bounds: dict[Node, int | None]) -> int | None:
    prefix, most = _items(shape)
    if shape.unique and shape.rest != NOTHING_NODE:
        # Items that all differ are at most as many as there are values.
        values = _values(normal.nodes[shape.rest])
        if values is not None:
            most = len(prefix) + values if most is None else min(most, len(prefix) + values)
    if most is None:
        return None
    more = most - len(prefix)
    inside = _sum([*(bounds[node] for node in prefix), *([_times(more, bounds[shape.rest])] if more > 0 else [])])
    return None if inside is None else 2 + inside + max(0, most - 1)


def _times(count: int, bound: int | None) -> int | None:
    return None if bound is None else count * bound


def _values(shapes: Iterable[Shape]) -> int | None:
    """No fewer than there are values; None where that takes more than a look."""
    total = 0
    for shape in shapes:
        if isinstance(shape, Fixed):
            total += 1
        elif isinstance(shape, Numbers) and shape.only is not None:
            total += len(shape.only)
        elif isinstance(shape, Numbers) and (ends := _whole_ends(shape)) is not None:
            total += max(0, int((ends[1] - ends[0]) / ends[2]) + 1)
        elif isinstance(shape, Strings) and shape.text.only is not None:
            total += len(shape.text.only)
        else:
            return None
    return total


def _object(shape: Objects, bounds: dict[Node, int | None]) -> int | None:
    if shape.most == 0:
        return 2
    members = [m for m in shape.members if m.node != NOTHING_NODE]
    others = [o for o in shape.others if o.node != NOTHING_NODE]
    if others and shape.most is None:
        return None  # a name that is not listed may come again
    most = len(members) if shape.most is None else shape.most if others else min(shape.most, len(members))
    pairs = {m.name: _sum([_given(m.name) + 1, bounds[m.node]]) for m in members}
    needed = [pairs[m.name] for m in members if m.required]
    free = [pairs[m.name] for m in members if not m.required]
    places = max(0, most - len(needed))
    for other in others if places else []:
        free += [_sum([text_bound(other.names), 1, bounds[other.node]])] * places
    # Without a bound first, then the longest.
    free.sort(key=lambda bound: (bound is not None, -(bound or 0)))
    inside = _sum([*needed, *free[:places]])
    count = len(needed) + min(places, len(free))
    return None if inside is None else 2 + inside + max(0, count - 1)


# -- scalars


def _number(shape: Numbers) -> int | None:
    if shape.only is not None:
        return max((_spelled(v) for v in shape.only), default=0)
    ends = _whole_ends(shape)
    if ends is None:
        return None  # digits behind the point, or an end that is open
    low, high, unit = ends
    lengths = [len(str(found)) for found in (_first(shape, low, unit), _first(shape, high, -unit)) if found is not None]
    # A zero may have a sign where negative numbers do.
    zero = 2 if low < 0 <= high else 0
    return max([*lengths, zero])


def _spelled(value: Fraction) -> int:
    """A given number is written in digits or, where these are many, as doubles are."""
    digits = len(spelling(value))
    return max(digits, len(dumps(float(value)))) if digits > 16 else digits


def _whole_ends(shape: Numbers) -> tuple[int, int, int] | None:
    """The least and the greatest of the whole numbers that are multiples of what is asked, and the step between them;
    None where they are not all whole, or there is no end."""
    unit = step(shape)
    if unit is None or unit.denominator != 1 or shape.low is None or shape.high is None:
        return None
    low, high = shape.low / unit, shape.high / unit
    first = floor(low) + 1 if shape.low_open else ceil(low)
    last = ceil(high) - 1 if shape.high_open else floor(high)
    return first * int(unit), last * int(unit), int(unit)


def _first(shape: Numbers, at: int, by: int) -> int | None:
    """The first of the set from an end of it on; where that is far, the end itself."""
    for tried in range(at, at + by * _MOST_TRIES, by):
        value = Fraction(tried)
        if value not in shape.without and not any((value / m).denominator == 1 for m in shape.not_multiple_of):
            return tried
    return at


def text_bound(text: Text) -> int | None:
    """Bytes of the longest JSON string of the set, quotes included; None: there are strings of any length."""
    if text.only is not None:
        return max(map(_given, text.only), default=0)
    if not (text.all_of or text.none_of or text.without):
        return None if text.most is None else 2 + _ANY_CHARACTER * text.most
    language = texts.language_of(texts.possible_without(text))
    try:
        automaton = characters(language, max_states=MAX_STATES, deadline=monotonic() + SECONDS)
    except ValueError:
        return 0  # no string
    except TooLarge:
        return None if text.most is None else 2 + 6 * text.most
    most = longest_path(automaton, text.least, text.most, _weight)
    return None if most is None else 2 + most


def _given(string: str) -> int:
    """Bytes of a string that is known, quotes included: what has a short escape may have the long one too."""
    return len(written(string).encode()) + 4 * sum(c in "\b\t\n\f\r" for c in string)


def longest_path(automaton: Characters, least: int, most: int | None, weight: Callable[[int, int], int]) -> int | None:
    """Bytes of the longest text of `least` to `most` characters; None: of any length. weight: bytes of the longest
    character between two."""
    table, final = automaton.table, automaton.final
    if most is None and _turns(table):
        return None  # from each state some text leads to a final one
    weights = np.array([max((weight(lo, hi) for lo, hi in part), default=0) for part in automaton.ranges], np.int64)
    source, symbol = np.nonzero(table >= 0)
    target, gain = table[source, symbol], weights[symbol]
    if most is not None and most * len(source) > _MOST_CELLS:
        return int(gain.max(initial=0)) * most
    reach = np.full(len(table), _FAR, np.int64)
    reach[automaton.start] = 0
    best = count = 0
    while (most is None or count <= most) and (reach >= 0).any():
        if count >= least:
            best = max(best, int(reach[final].max(initial=_FAR)))
        following = np.full(len(table), _FAR, np.int64)
        np.maximum.at(following, target, reach[source] + gain)
        reach = np.where(following < 0, _FAR, following)
        count += 1
    return best


def _turns(table: np.ndarray) -> bool:
    """Whether some state leads back to itself."""
    entries = np.bincount(table[table >= 0], minlength=len(table))
    gone = np.flatnonzero(entries == 0).tolist()
    for state in gone:  # grows as it is walked
        for to in table[state][table[state] >= 0].tolist():
            entries[to] -= 1
            if not entries[to]:
                gone.append(to)
    return len(gone) < len(table)


def _weight(low: int, high: int) -> int:
    """Bytes of the longest spelling of a character between the two, where each has as few as it needs."""
    if low < 0x20:
        return 6
    most = len(chr(min(high, 0xD7FF) if 0xD800 <= high <= 0xDFFF else high).encode())
    escaped = any(low <= c <= high for c in (0x22, 0x2F, 0x5C))
    return max(most, 2 if escaped else 1)
