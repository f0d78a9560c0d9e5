"""An automaton over characters, walked by the bytes of their UTF-8.

How a character is spelled does not depend on where it stands: its bytes are a small automaton of their own, whose
ends are the symbols of the one over characters. A state of both together is q * width + u: the state q before the
character, and u what of the character has been read (0: nothing).
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from functools import lru_cache
from secrets import randbits
from threading import Lock

import numpy as np

from palmette.runtime.constraints.charset import utf8
from palmette.runtime.constraints.determinize import Characters, TooLarge, characters
from palmette.runtime.constraints.regex_language import Language
from palmette.runtime.constraints.trie import rungs

_DENSE_CELLS = 1 << 19  # of a table over bytes, made where it is this small
_MAX_SPELLINGS = 4096
_FAR = 1 << 29
_LEADS = range(0xC2, 0xF5)
# The first and last character that begins with each.
_LED = [
    *(((b & 0x1F) << 6, (b & 0x1F) << 6 | 0x3F) for b in range(0xC2, 0xE0)),
    *((max((b & 0x0F) << 12, 0x800), (b & 0x0F) << 12 | 0xFFF) for b in range(0xE0, 0xF0)),
    *((max((b & 0x07) << 18, 0x10000), min((b & 0x07) << 18 | 0x3FFFF, 0x10FFFF)) for b in range(0xF0, 0xF5)),
]
_LEAD_STARTS = [first for first, _ in _LED]


class Spelling:
    """The UTF-8 of the characters of some symbols. A node stands within a character; 0 is before it.

    steps: int32 [nodes, classes], by class of bytes: a node > 0, or -1 - symbol, or 0 for no such character;
    column: int32 [256] the class of each byte; under[u]: per symbol below u, bytes that lead to it.
    """

    def __init__(self, ranges: tuple[tuple[tuple[int, int], ...], ...]) -> None:
        """TooLarge when there are too many nodes."""
        sequences = [
            (sequence, symbol) for symbol, part in enumerate(ranges) for lo, hi in part for sequence in utf8(lo, hi)
        ]
        sequences.sort(key=lambda pair: (pair[0][0][0], pair[0]))
        known: dict[tuple[tuple[int, int, int], ...], int] = {}

        def node(some: list[tuple[tuple[tuple[int, int], ...], int]], depth: int) -> tuple[tuple[int, int, int], ...]:
            """The edges (first byte, last byte, step) of sequences that are alike before `depth`, in order."""
            edges: list[tuple[int, int, int]] = []
            at = 0
            while at < len(some):
                sequence, symbol = some[at]
                lo, hi = sequence[depth]
                end, step = at + 1, -1 - symbol
                if depth + 1 < len(sequence):
                    while end < len(some) and some[end][0][depth] == (lo, hi):
                        end += 1
                    step = known.setdefault(node(some[at:end], depth + 1), len(known) + 1)
                if edges and edges[-1][1] == lo - 1 and edges[-1][2] == step:
                    edges[-1] = (edges[-1][0], hi, step)
                else:
                    edges.append((lo, hi, step))
                at = end
            return tuple(edges)

        nodes = [node(sequences, 0), *known]
        if len(nodes) > _MAX_SPELLINGS:
            raise TooLarge(f"{_MAX_SPELLINGS:,} states within a character")
        full = np.zeros((len(nodes), 256), np.int32)
        for u, edges in enumerate(nodes):
            for lo, hi, step in edges:
                full[u, lo : hi + 1] = step
        classes: dict[bytes, int] = {}
        self.column = np.array([classes.setdefault(full[:, b].tobytes(), len(classes)) for b in range(256)], np.int32)
        self.steps = np.ascontiguousarray(full[:, np.unique(self.column, return_index=True)[1]])
        self.width = len(nodes)
        self.under: list[dict[int, bytes]] = [{} for _ in nodes]
        for u in (*range(1, len(nodes)), 0):  # a node leads to lower ones only
            for lo, _, step in nodes[u]:
                if step < 0:
                    self.under[u].setdefault(-1 - step, bytes([lo]))
                else:
                    for symbol, rest in self.under[step].items():
                        self.under[u].setdefault(symbol, bytes([lo]) + rest)
        self.signs = [sign(part).encode() for part in ranges]
        self.costs = np.array([len(s) for s in self.signs], np.int32)
        # For each symbol, which ASCII characters it holds, and which leading bytes with all that can follow them.
        self.holds = np.zeros((len(ranges), 192), np.float32)
        for symbol, part in enumerate(ranges):
            for lo, hi in part:
                self.holds[symbol, lo : min(hi, 0x7F) + 1] = 1
        self.leads = np.zeros((len(ranges), len(_LEADS)), np.float32)
        self.lead_counts = np.full(len(_LEADS), np.inf, np.float32)
        whole = [last - first + 1 for first, last in _LED]
        for symbol, part in enumerate(ranges):
            for lo, hi in part:
                for k in range(max(bisect_right(_LEAD_STARTS, lo) - 1, 0), bisect_right(_LEAD_STARTS, hi)):
                    first, last = _LED[k]
                    held = min(hi, last) - max(lo, first) + 1
                    if held > 0:
                        self.leads[symbol, k] = 1
                        whole[k] -= held
        # 0xED leads to the surrogates too, which are no characters.
        whole[0xED - _LEADS[0]] -= 0x800
        for k, left in enumerate(whole):
            if left == 0:
                self.lead_counts[k] = self.leads[:, k].sum()
            else:
                self.leads[:, k] = 0


@lru_cache(maxsize=64)
def _spelling(ranges: tuple[tuple[tuple[int, int], ...], ...]) -> Spelling:
    return Spelling(ranges)


def sign(ranges: tuple[tuple[int, int], ...] | list[tuple[int, int]]) -> str:
    """The character of the ranges that has the fewest bytes, and of these one that reads well and needs no escape."""
    for lo, hi in ((0x61, 0x7A), (0x41, 0x5A), (0x30, 0x39), (0x23, 0x5B), (0x5D, 0x7E), (0x20, 0x21), (0, 0x10FFFF)):
        found = [max(lo, first) for first, last in ranges if first <= hi and last >= lo]
        if found:
            return chr(min(found))
    raise AssertionError("a symbol stands for some character")


def build(language: Language, *, max_states: int, deadline: float) -> CharacterAutomaton:
    """The automaton of the language; bounds and errors as for `characters`."""
    return CharacterAutomaton(characters(language, max_states=max_states, deadline=deadline))


class CharacterAutomaton:
    """See above; from every state some text leads to a final one."""

    def __init__(self, automaton: Characters) -> None:
        self.characters = automaton
        self.spelling = _spelling(tuple(tuple(part) for part in automaton.ranges))
        self.width = self.spelling.width
        table, spelling = automaton.table, self.spelling
        # Whether a character that has been read up to u can be completed at all.
        self._within = np.zeros((len(table), self.width), bool)
        for u in range(1, self.width):
            self._within[:, u] = (table[:, list(spelling.under[u])] >= 0).any(axis=1)
        self._final = automaton.final
        self.start = automaton.start * self.width
        self._dense: np.ndarray | None = None
        if len(table) * spelling.steps.size <= _DENSE_CELLS:
            columns = np.arange(spelling.steps.shape[1], dtype=np.int32)
            every = np.arange(len(self), dtype=np.int32)
            self._dense = self._steps(every[:, None], columns[None, :])
        self._distance: np.ndarray | None = None
        self._keys: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}
        self._lock = Lock()
        self.nbytes = table.nbytes + self._within.nbytes + (0 if self._dense is None else self._dense.nbytes)

    def __len__(self) -> int:
        return len(self.characters.table) * self.width

    def _steps(self, states: np.ndarray, columns: np.ndarray) -> np.ndarray:
        q, u = np.divmod(states, self.width)
        step = self.spelling.steps[u, columns]
        within = np.where(self._within[q, np.maximum(step, 0)], q * self.width + step, -1)
        if not len(self.spelling.signs):
            return np.where(step > 0, within, -1).astype(np.int32)
        to = self.characters.table[q, np.maximum(-1 - step, 0)]
        return np.where(step > 0, within, np.where((step < 0) & (to >= 0), to * self.width, -1)).astype(np.int32)

    def steps(self, states: np.ndarray, bytes_: np.ndarray) -> np.ndarray:
        columns = self.spelling.column[bytes_]
        return self._steps(states, columns) if self._dense is None else self._dense[states, columns]

    def step(self, state: int, byte: int) -> int:
        column = self.spelling.column[byte]
        if self._dense is not None:
            return int(self._dense[state, column])
        q, u = divmod(state, self.width)
        step = int(self.spelling.steps[u, column])
        if step > 0:
            return q * self.width + step if self._within[q, step] else -1
        to = int(self.characters.table[q, -1 - step]) if step else -1
        return to * self.width if to >= 0 else -1

    def final(self, state: int) -> bool:
        q, u = divmod(state, self.width)
        return u == 0 and bool(self._final[q])

    def exits(self, state: int) -> np.ndarray:
        every = np.arange(256)
        return np.flatnonzero(self.steps(np.full(256, state), every) >= 0)

    def between(self, state: int) -> list[tuple[bytes, int]]:
        """The states before a character that come next (the state itself where it is one), each with bytes that lead
        to it; as numbers of the automaton over characters."""
        q, u = divmod(state, self.width)
        if not u:
            return [(b"", q)]
        found: dict[int, bytes] = {}
        for symbol, text in self.spelling.under[u].items():
            to = int(self.characters.table[q, symbol])
            if to >= 0:
                found.setdefault(to, text)
        return [(text, to) for to, text in found.items()]

    def shortest_end(self, state: int) -> bytes:
        if self._distance is None:
            self._distance = self._distances()
        begun, q = min(self.between(state), key=lambda way: (len(way[0]) + int(self._distance[way[1]]), way[0]))
        out = bytearray(begun)
        while self._distance[q]:
            to = self.characters.table[q]
            symbol = int(np.argmin(np.where(to >= 0, self.spelling.costs + self._distance[to], _FAR)))
            out += self.spelling.signs[symbol]
            q = int(to[symbol])
        return bytes(out)

    def longest_end(self) -> int:
        if self._distance is None:
            self._distance = self._distances()
        # Within a character its last bytes come first, at most three.
        return int(self._distance[self._distance < _FAR].max()) + 3

    def _distances(self) -> np.ndarray:
        """The fewest bytes from each state between characters to a final one (Dijkstra 1959, backwards); int32."""
        table, costs = self.characters.table, self.spelling.costs.tolist()
        before: list[dict[int, int]] = [{} for _ in range(len(table))]
        for symbol, cost in enumerate(costs):
            for q in np.flatnonzero(table[:, symbol] >= 0).tolist():
                ways = before[table[q, symbol]]
                ways[q] = min(cost, ways.get(q, cost))
        distance = [_FAR] * len(table)
        queue = [(0, q) for q in np.flatnonzero(self._final).tolist()]
        while queue:
            far, q = heapq.heappop(queue)
            if distance[q] == _FAR:
                distance[q] = far
                for p, cost in before[q].items():
                    if distance[p] == _FAR:
                        heapq.heappush(queue, (far + cost, p))
        return np.array(distance, np.int32)

    def row_key(self, state: int, length: int) -> tuple[object, ...]:
        """Equal for states, of any automata, from which the same texts of up to `length` bytes can be gone on with."""
        q, u = divmod(state, self.width)
        keys, _, rounds = self._residuals(length)
        if not u:
            return (rounds, int(keys[q]))
        to = self.characters.table[q, list(self.spelling.under[u])]
        return (id(self.spelling), u, keys[to].tobytes())

    def loops(self, length: int) -> np.ndarray:
        """Per rung of `rungs(length)` and state between characters, the characters after any number of which the
        automaton is as before, as far as texts of so many bytes tell: uint64 [rungs, states, 3], the ASCII ones by
        their code, others by their leading byte - 0xC2."""
        return self._residuals(length)[1]

    def _residuals(self, length: int) -> tuple[np.ndarray, np.ndarray, int]:
        with self._lock:
            found = self._keys.get(length)
            if found is None:
                ladder = _residual_keys(self.characters, rungs(length))
                loops = [self._loops(keys) for keys in ladder]
                loops += loops[-1:] * (len(rungs(length)) - len(loops))
                found = self._keys[length] = (ladder[-1], np.stack(loops), len(ladder))
                self.nbytes += found[0].nbytes + found[1].nbytes
            return found

    def _loops(self, keys: np.ndarray) -> np.ndarray:
        table, spelling = self.characters.table, self.spelling
        same = (keys[table] == keys[:-1, None]) & (table >= 0)
        out = np.zeros((len(table), 3), np.uint64)
        looping = np.flatnonzero(same.any(axis=1))
        if not len(looping):
            return out
        # Few different sets of symbols stand behind many states.
        sets, which = same[looping], np.arange(len(looping))
        if len(looping) > 256:
            packed, which = np.unique(np.packbits(sets, axis=1), axis=0, return_inverse=True)
            sets = np.unpackbits(packed, axis=1, count=table.shape[1]).astype(bool)
        number = sets.astype(np.float32)
        held = number @ spelling.holds > 0
        held[:, 128 : 128 + len(_LEADS)] = number @ spelling.leads >= spelling.lead_counts
        out[looping] = np.packbits(held, axis=1, bitorder="little").view(np.uint64)[which.reshape(-1)]
        return out


_SALT = np.random.default_rng(randbits(64))  # no pattern can be written for a collision of keys
_ODD = [np.uint64(int(n) | 1) for n in _SALT.integers(0, 1 << 63, 3, dtype=np.uint64)]
_PLANES = _SALT.integers(0, 1 << 63, 4 * 256, dtype=np.uint64).reshape(4, 256)


def _weight(code: int) -> int:
    """A number of 64 bits for each code point, at random (tabulation hashing)."""
    value = 0
    for plane in range(3):
        value ^= int(_PLANES[plane, code >> 8 * plane & 255]) * int(_ODD[plane])
    return value & (1 << 64) - 1


def _residual_keys(automaton: Characters, lengths: tuple[int, ...]) -> list[np.ndarray]:
    """For each of the ascending lengths, per state a number of 64 bits that says which texts of up to so many
    characters can be gone on with from it; uint64 [states + 1], the last for "no state".

    One round adds one character. A symbol weighs what its ranges do, so that it makes no difference into how many
    symbols an automaton divides the same characters: the numbers of different automata can be compared.

    Where states that are alike at one length are so at the next, they are for good, and the rest of the lengths is left
    out. Of two automata both of which have come to rest like that, two states may yet differ later on, but then fewer
    states of the one have their like in the other at each further round: as many rounds as either has states that
    differ, and no such pair is left.
    """
    weights = np.array(
        [sum(_weight(hi + 1) - _weight(lo) for lo, hi in part) & (1 << 64) - 1 for part in automaton.ranges], np.uint64
    )
    keys = np.ones(len(automaton.table) + 1, np.uint64)
    keys[-1] = 0
    table = automaton.table
    found: list[np.ndarray] = []
    counted = [0]
    for done in range(1, lengths[-1] + 1):
        mixed = keys * _ODD[0]
        mixed ^= mixed >> np.uint64(29)
        mixed *= _ODD[1]
        mixed[-1] = 0
        keys = np.zeros(len(keys), np.uint64)
        np.add(mixed[table] @ weights, np.uint64(1), out=keys[:-1])
        if done in lengths:
            found.append(keys)
            counted.append(len(np.unique(keys)))
            if counted[-1] == counted[-2] and lengths[len(found) - 2] + counted[-1] <= done:
                break
    return found
