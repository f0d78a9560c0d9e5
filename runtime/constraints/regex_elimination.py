"""From an automaton over characters back to a regex, by eliminating its states (Brzozowski and McCluskey 1963), where
the regex comes out small."""

from __future__ import annotations

from typing import NamedTuple

from palmette.runtime.constraints.charset import charset, union
from palmette.runtime.constraints.determinize import Characters
from palmette.runtime.constraints.regex_syntax import Alt, Chars, Node, Repeat, Seq

_EMPTY = Seq(())


class _Label(NamedTuple):
    """What an edge takes; size: of the tree written out, in nodes."""

    node: Node
    size: int


def _either(a: _Label | None, b: _Label) -> _Label:
    if a is None or a.node == b.node:
        return b
    if isinstance(a.node, Chars) and isinstance(b.node, Chars):
        return _Label(Chars(union(a.node.chars, b.node.chars)), 1)
    options = [*(a.node.options if isinstance(a.node, Alt) else [a.node])]
    options += b.node.options if isinstance(b.node, Alt) else [b.node]
    if _EMPTY in options:
        some = tuple(dict.fromkeys(option for option in options if option != _EMPTY))
        body = some[0] if len(some) == 1 else Alt(some)
        return _Label(Repeat(body, 0, 1, "", 0), a.size + b.size)
    return _Label(Alt(tuple(dict.fromkeys(options))), a.size + b.size)


def _then(*labels: _Label) -> _Label:
    items: list[Node] = []
    for label in labels:
        items += label.node.items if isinstance(label.node, Seq) else [label.node]
    node = items[0] if len(items) == 1 else Seq(tuple(items))
    return _Label(node, sum(label.size for label in labels))


def regex_of(automaton: Characters, most: int) -> Node | None:
    """A tree of the automaton's texts; None when it would have more than `most` nodes."""
    n = len(automaton.table)
    start, end = n, n + 1
    into: list[set[int]] = [set() for _ in range(n + 2)]
    out: list[dict[int, _Label]] = [{} for _ in range(n + 2)]

    def add(a: int, b: int, label: _Label) -> None:
        out[a][b] = _either(out[a].get(b), label)
        into[b].add(a)

    for q in range(n):
        for symbol, to in enumerate(automaton.table[q].tolist()):
            if to >= 0:
                add(q, to, _Label(Chars(charset(automaton.ranges[symbol])), 1))
        if automaton.final[q]:
            add(q, end, _Label(_EMPTY, 0))
    add(start, automaton.start, _Label(_EMPTY, 0))
    left = set(range(n))
    while left:
        q = min(left, key=lambda s: (len(into[s] - {s}) * len(out[s].keys() - {s}), s))
        left.remove(q)
        loop = out[q].pop(q, None)
        into[q].discard(q)
        around = () if loop is None else (_Label(Repeat(loop.node, 0, None, "", 0), loop.size),)
        for a in into[q]:
            first = out[a].pop(q)
            for b, last in out[q].items():
                add(a, b, _then(first, *around, last))
                if out[a][b].size > most:
                    return None
        for b in out[q]:
            into[b].discard(q)
        out[q], into[q] = {}, set()
    label = out[start].get(end)
    return None if label is None or label.size > most else label.node
