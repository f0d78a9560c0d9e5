"""A trie of byte strings in flat arrays: the tokens of a vocabulary, or the options of a choice.

Nodes are numbered breadth first, so the children of a node lie side by side, in order of their bytes:

    strings  a, ab, b          node   0    1    2    3
                               byte   -    a    b    b        node 3 = "ab"
                               lo,hi  1,3  3,4  4,4  4,4      children of a node: nodes lo .. hi-1

and `parent * 256 + byte` grows with the node's number, which makes a step a binary search.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np


def ranges(lo: np.ndarray, hi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers lo[k] .. hi[k]-1 for all k, one after another, and for each of them its k. int64."""
    count = hi - lo
    total = int(count.sum())
    owner = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    return np.arange(total) - first[owner] + lo[owner], owner


_BROKEN = 8


def _readings() -> np.ndarray:
    """What has been read of a character after one more byte: int8 [9, 256]. 0: nothing; 1, 2, 3: so many bytes are
    missing; 4 to 7: as 2, 2, 3, 3 after E0, ED, F0, F4, behind which fewer bytes may stand; 8: it is none."""
    table = np.full((9, 256), _BROKEN, np.int8)
    table[0, :0x80] = 0
    for lo, hi, to in ((0xC2, 0xDF, 1), (0xE0, 0xEF, 2), (0xF0, 0xF4, 3)):
        table[0, lo : hi + 1] = to
    table[0, [0xE0, 0xED, 0xF0, 0xF4]] = (4, 5, 6, 7)
    for at, lo, hi, to in (
        (1, 0x80, 0xBF, 0), (2, 0x80, 0xBF, 1), (3, 0x80, 0xBF, 2), (4, 0xA0, 0xBF, 1),
        (5, 0x80, 0x9F, 1), (6, 0x90, 0xBF, 2), (7, 0x80, 0x8F, 2),
    ):  # fmt: skip
        table[at, lo : hi + 1] = to
    return table


_READING = _readings()


_LONGEST_RUN = 1 << 20
_CHUNK = 4096  # strings that are read in one go


def _columns(strings: Iterable[tuple[bytes, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All bytes one after another, and per string its length and its id; in pieces, between which others may run."""
    texts, lengths, ids = [np.empty(0, np.uint8)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    coming = iter(strings)
    while piece := list(islice(coming, _CHUNK)):
        texts.append(np.frombuffer(b"".join([s for s, _ in piece]), np.uint8))
        lengths.append(np.array([len(s) for s, _ in piece], np.int64))
        ids.append(np.array([i for _, i in piece], np.int64))
    return np.concatenate(texts), np.concatenate(lengths), np.concatenate(ids)


_RUNGS = (4, 8, 16, 32, 64)


def rungs(length: int) -> tuple[int, ...]:
    """The lengths up to which residual languages are compared, for strings of up to `length` bytes: what stands behind
    most nodes is short, and more states are alike as far as that goes."""
    return (*(rung for rung in _RUNGS if rung < length), max(1, length))


class ByteTrie:
    """Built once, then read only.

    byte: uint8 [nodes] the byte that leads to a node; lo, hi: int32 [nodes] its children;
    end_lo, end_hi: int32 [nodes] the part of `ends` that holds the ids of the strings that end there;
    ends, end_nodes: int64 [strings], ascending in the nodes.
    """

    def __init__(self, strings: Iterable[tuple[bytes, int]]) -> None:
        """strings: (bytes, id); the same bytes may come with several ids. The empty string ends at the root."""
        text, lengths, ids = _columns(strings)
        offset = np.cumsum(lengths) - lengths
        # Level by level, the strings grouped by the node they have come to; all in numpy, as sorting a million of
        # Python's strings would hold up every other thread.
        bytes_, parents = [np.zeros(1, np.uint8)], [np.full(1, -1, np.int64)]
        ended = np.flatnonzero(lengths == 0)
        ends, end_nodes = [ended], [np.zeros(len(ended), np.int64)]
        alive = np.flatnonzero(lengths > 0)
        node = np.zeros(len(alive), np.int64)
        total, depth = 1, 0
        while len(alive):
            steps, single = 1, len(alive) == 1 or bool((np.diff(node) > 0).all())
            if single:
                # Each string has its own node, so that nothing branches any more until one of them ends.
                steps = max(1, min(int(lengths[alive].min()) - depth, _LONGEST_RUN // len(alive)))
            column = text[offset[alive] + depth + np.arange(steps)[:, None]]
            if single:
                child = total + np.arange(steps * len(alive)).reshape(column.shape)
                bytes_.append(column.reshape(-1))
                parents += [node, child[:-1].reshape(-1)]
                total, node = total + child.size, child[-1]
            else:
                keys = node * 256 + column[0]
                order = np.argsort(keys, kind="stable")
                alive, keys = alive[order], keys[order]
                fresh = np.ones(len(alive), bool)
                fresh[1:] = keys[1:] != keys[:-1]
                node = np.cumsum(fresh) - 1 + total
                bytes_.append((keys[fresh] & 255).astype(np.uint8))
                parents.append(keys[fresh] >> 8)
                total += int(fresh.sum())
            depth += steps
            over = lengths[alive] == depth
            ends.append(alive[over])
            end_nodes.append(node[over])
            alive, node = alive[~over], node[~over]

        self.depth = depth
        self.byte = np.concatenate(bytes_)
        parent = np.concatenate(parents)
        del parents, bytes_
        self._edges = parent[1:] * 256 + self.byte[1:]  # of node i + 1; ascending
        every = np.arange(total)
        self.lo = (np.searchsorted(parent[1:], every, "left") + 1).astype(np.int32)
        self.hi = np.append(self.lo[1:], total).astype(np.int32)
        self.end_nodes = np.concatenate(end_nodes)
        self.ends = ids[np.concatenate(ends)]
        self.end_lo = np.searchsorted(self.end_nodes, every, "left").astype(np.int32)
        self.end_hi = np.append(self.end_lo[1:], len(ids)).astype(np.int32)
        self._spans: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._signatures: tuple[np.ndarray, np.ndarray] | None = None
        self.nbytes = 21 * total + sum(a.nbytes for a in (self.byte, self.ends, self.end_nodes)) - total

    def __len__(self) -> int:
        return len(self.byte)

    def child(self, node: int, byte: int) -> int:
        """The node after `byte`, or -1."""
        edge = node * 256 + byte
        i = int(np.searchsorted(self._edges, edge))
        return i + 1 if i < len(self._edges) and int(self._edges[i]) == edge else -1

    def children(self, nodes: np.ndarray, bytes_: np.ndarray) -> np.ndarray:
        """`child` of many nodes at once; int64."""
        if not len(self._edges):
            return np.full(len(nodes), -1)
        edges = nodes.astype(np.int64) * 256 + bytes_
        i = np.minimum(np.searchsorted(self._edges, edges), len(self._edges) - 1)
        return np.where(self._edges[i] == edges, i + 1, -1)

    @property
    def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """order: int64 [strings], places in `ends` in the order of the strings; lo, hi: int32 [nodes], the part of it
        that begins as the node does. Made on first use."""
        if self._spans is None:
            own = (self.end_hi - self.end_lo).astype(np.int64)
            levels = self._levels()
            held = own.copy()
            for first, last in reversed(levels[:-1]):
                inner = np.flatnonzero(self.lo[first:last] < self.hi[first:last]) + first
                below, end = int(self.lo[inner[0]]), int(self.hi[last - 1])
                held[inner] += np.add.reduceat(held[below:end], self.lo[inner] - below)
            lo = np.zeros(len(own), np.int64)
            for first, last in levels[:-1]:
                child, owner = ranges(self.lo[first:last], self.hi[first:last])
                before = np.cumsum(held[child]) - held[child]
                start = (self.lo[first:last] - self.lo[first])[owner]
                lo[child] = (lo + own)[first:last][owner] + before - before[start]
            order = np.empty(len(self.ends), np.int64)
            order[ranges(lo, lo + own)[0]] = np.arange(len(self.ends))
            self._spans = order, lo.astype(np.int32), (lo + held).astype(np.int32)
        return self._spans

    def _levels(self) -> list[tuple[int, int]]:
        """The nodes of each level, from the root's on."""
        levels = [(0, 1)]
        while (first := int(self.lo[levels[-1][0]])) < (last := int(self.hi[levels[-1][1] - 1])):
            levels.append((first, last))
        return levels

    def parent(self, node: int) -> int:
        return int(self._edges[node - 1]) >> 8

    @property
    def signatures(self) -> tuple[np.ndarray, np.ndarray]:
        """Which characters the strings have behind each node: uint64 [nodes, 3], the ASCII ones by their code, others
        by their leading byte - 0xC2; the last bit for nodes with bytes behind them that are not UTF-8, and for all that
        stand within a character. And how long they are: uint8 [nodes], the place in `rungs(depth)`. Made on first
        use."""
        if self._signatures is None:
            self._signatures = self._sign()
        return self._signatures

    def _sign(self) -> tuple[np.ndarray, np.ndarray]:
        broken = np.uint64(1 << 63)
        levels = self._levels()
        # Down: what of a character has been read at each node, as in UTF-8's table of well-formed sequences.
        reading = np.zeros(len(self.byte), np.int8)
        edges = np.zeros((len(self.byte), 3), np.uint64)
        for first, last in levels[:-1]:
            child, owner = ranges(self.lo[first:last], self.hi[first:last])
            byte, before = self.byte[child].astype(np.int64), reading[first:last][owner]
            to = _READING[before, byte]
            reading[child] = to
            edges[child[to == _BROKEN], 2] = broken
            at = before == 0
            for word in (0, 1):
                here = at & (byte >> 6 == word)
                edges[child[here], word] = np.uint64(1) << (byte[here] & 63).astype(np.uint64)
            here = at & (to > 0) & (to != _BROKEN)
            edges[child[here], 2] = np.uint64(1) << (byte[here] - 0xC2).astype(np.uint64)
        # Up: all that stands behind.
        signatures = np.zeros((len(self.byte), 3), np.uint64)
        height = np.zeros(len(self.byte), np.int32)
        for first, last in reversed(levels[:-1]):
            inner = np.flatnonzero(self.lo[first:last] < self.hi[first:last]) + first
            below, end = int(self.lo[inner[0]]), int(self.hi[last - 1])
            both = signatures[below:end] | edges[below:end]
            signatures[inner] = np.bitwise_or.reduceat(both, self.lo[inner] - below, axis=0)
            height[inner] = np.maximum.reduceat(height[below:end], self.lo[inner] - below) + 1
        signatures[reading != 0, 2] |= broken
        return signatures, np.searchsorted(rungs(self.depth), height).astype(np.uint8)

    def find(self, text: bytes, node: int = 0) -> int:
        """The node after all of `text`, or -1."""
        for byte in text:
            node = self.child(node, byte)
            if node < 0:
                break
        return node

    def below(self, node: int) -> np.ndarray:
        """Ids of the strings that begin as the node's does, its own too; int64, ascending."""
        found, first, last = [], node, node + 1
        while first < last:
            # The nodes below a node lie side by side on each level.
            found.append(self.ends[self.end_lo[first] : self.end_hi[last - 1]])
            first, last = int(self.lo[first]), int(self.hi[last - 1])
        return np.sort(np.concatenate(found))

    def ends_at(self, node: int) -> np.ndarray:
        """Ids of the strings that end at the node."""
        return self.ends[self.end_lo[node] : self.end_hi[node]]
