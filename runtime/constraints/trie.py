"""A trie of byte strings in flat arrays: the tokens of a vocabulary, or the options of a choice.

Nodes are numbered breadth first, so the children of a node lie side by side, in order of their bytes:

    strings  a, ab, b          node   0    1    2    3
                               byte   -    a    b    b        node 3 = "ab"
                               lo,hi  1,3  3,4  4,4  4,4      children of a node: nodes lo .. hi-1

and `parent * 256 + byte` grows with the node's number, which makes a step a binary search.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ranges(lo: np.ndarray, hi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers lo[k] .. hi[k]-1 for all k, one after another, and for each of them its k. int64."""
    count = hi - lo
    total = int(count.sum())
    owner = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    return np.arange(total) - first[owner] + lo[owner], owner


class ByteTrie:
    """Built once, then read only.

    byte: uint8 [nodes] the byte that leads to a node; lo, hi: int32 [nodes] its children;
    end_lo, end_hi: int32 [nodes] the part of `ends` that holds the ids of the strings that end there;
    ends: int64 [strings].
    """

    def __init__(self, strings: Sequence[tuple[bytes, int]]) -> None:
        """strings: (bytes, id); the same bytes may come with several ids. The empty string ends at the root."""
        ordered = sorted(strings)
        lengths = np.array([len(s) for s, _ in ordered], np.int64)
        ids = np.array([i for _, i in ordered], np.int64)
        text = np.frombuffer(b"".join(s for s, _ in ordered), np.uint8)
        offset = np.cumsum(lengths) - lengths

        bytes_, parents = [np.zeros(1, np.uint8)], [np.full(1, -1, np.int64)]
        ends, end_nodes = [ids[lengths == 0]], [np.zeros(int((lengths == 0).sum()), np.int64)]
        alive, node = np.flatnonzero(lengths > 0), np.zeros(int((lengths > 0).sum()), np.int64)
        total = 1
        depth = 0
        while len(alive):
            column = text[offset[alive] + depth]
            # The strings are sorted, so those that share a node are neighbours.
            fresh = np.ones(len(alive), bool)
            fresh[1:] = (node[1:] != node[:-1]) | (column[1:] != column[:-1])
            child = np.cumsum(fresh) - 1 + total
            bytes_.append(column[fresh])
            parents.append(node[fresh])
            total += int(fresh.sum())
            depth += 1
            over = lengths[alive] == depth
            ends.append(ids[alive[over]])
            end_nodes.append(child[over])
            alive, node = alive[~over], child[~over]

        self.depth = depth
        self.byte = np.concatenate(bytes_)
        parent = np.concatenate(parents)
        self._edges = parent[1:] * 256 + self.byte[1:]  # of node i + 1; ascending
        every = np.arange(total)
        self.lo = (np.searchsorted(parent[1:], every, "left") + 1).astype(np.int32)
        self.hi = (np.searchsorted(parent[1:], every, "right") + 1).astype(np.int32)
        self.ends = np.concatenate(ends)
        end_node = np.concatenate(end_nodes)
        self.end_lo = np.searchsorted(end_node, every, "left").astype(np.int32)
        self.end_hi = np.searchsorted(end_node, every, "right").astype(np.int32)
        self.nbytes = sum(a.nbytes for a in (self.byte, self._edges, self.lo, self.hi, self.ends)) + 8 * total

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
