"""Which tokens may come at a state of an automaton."""

from __future__ import annotations

import numpy as np

from palmette.runtime.constraints.automaton import Automaton
from palmette.runtime.constraints.automaton_characters import CharacterAutomaton
from palmette.runtime.constraints.trie import ByteTrie, ranges

_PIECE = 1 << 14  # nodes that are walked in one go: other threads wait no longer than for one


def allowed_tokens(automaton: Automaton, state: int, trie: ByteTrie, node: int = 0) -> np.ndarray:
    """Ids of the strings of `trie` below `node` whose remaining bytes the automaton can take from `state`; int64.

    Both are walked together, breadth first, and what the automaton refuses is pruned with all that is below it
    (CONSTRAINTS.md §4.3). Where all that is below has only characters after which the automaton is as before, it is
    taken as a whole: of a string that may hold nearly anything, little is left to walk. The strings that end at `node`
    itself are not among those found.
    """
    loops = automaton.loops(trie.depth) if isinstance(automaton, CharacterAutomaton) else None
    if loops is not None and not loops.any():
        loops = None
    found: list[np.ndarray] = [np.empty(0, np.int64)]
    todo = [(np.array([node]), np.array([state]))]
    while todo:
        nodes, states = todo.pop()
        if len(nodes) > _PIECE:
            todo += [(nodes[i : i + _PIECE], states[i : i + _PIECE]) for i in range(0, len(nodes), _PIECE)]
            continue
        child, owner = ranges(trie.lo[nodes], trie.hi[nodes])
        to = automaton.steps(states[owner], trie.byte[child])
        alive = np.flatnonzero(to >= 0)
        nodes, states = child[alive], to[alive]
        if loops is not None and len(nodes):
            assert isinstance(automaton, CharacterAutomaton)
            q, u = np.divmod(states, automaton.width)
            signatures, rung = trie.signatures
            rest = signatures[nodes] & ~loops[rung[nodes], q]
            whole = (u == 0) & ~rest.any(axis=1)
            taken = nodes[whole]
            order, lo, hi = trie.spans
            found.append(trie.ends[order[ranges(lo[taken], hi[taken])[0]]])
            nodes, states = nodes[~whole], states[~whole]
        found.append(trie.ends[ranges(trie.end_lo[nodes], trie.end_hi[nodes])[0]])
        inner = trie.lo[nodes] < trie.hi[nodes]
        if inner.any():
            todo.append((nodes[inner], states[inner]))
    return np.concatenate(found)
