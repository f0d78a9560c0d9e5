"""How much of the prompts no cache could spare: counted exactly, in a trie of all that is asked.

A prompt token need not be computed where another request has the same tokens up to it, or made them as its output. So,
with each distinct text from the start a node of a trie,

    required = nodes that stand in prompts, and in the output of none
    optimal  = 1 - required / prompt tokens

The trie is never built. In the sorted order of the texts, those through a node stand side by side, and each differs
from its neighbour behind their common prefix: so one pass with a stack, which is the trie's rightmost path, meets every
node.

    texts, sorted      the stack: runs of nodes (start, end, least prompt length of the texts through them)
    a b c d            (0, 4)
    a b e              (0, 2) (2, 3)          2 in common with the one before: the run 2..4 is counted and goes

A node at depth d is in the output of none exactly where d is at most the least prompt length of the texts through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from palmette.radix_cache.arrays import common_prefix


class Text(NamedTuple):
    """The tokens of a request, int32 [n]: `prompt` of them, then those that it made and that later ones may go on from.
    Texts of different namespaces share nothing."""

    tokens: np.ndarray
    prompt: int
    namespace: str = ""


class Optimum(NamedTuple):
    """In tokens. prompt: of all prompts together. required: of these, what has to be computed once. distinct: nodes of
    the trie, those of outputs too: the size of a KV cache that never has to evict."""

    prompt: int
    required: int
    distinct: int

    @property
    def hit_rate(self) -> float:
        """The greatest part of the prompt tokens that can come from a cache."""
        return 1.0 - self.required / self.prompt if self.prompt else 0.0


def optimum(texts: Iterable[Text]) -> Optimum:
    """Count the texts of a workload, in any order. Takes as long as sorting them."""
    # Bytes are compared as one. Any order in which the texts with a common beginning stand side by side will do.
    ordered = sorted(texts, key=lambda text: (text.namespace, text.tokens.tobytes()))
    prompt = required = distinct = 0
    stack: list[list[int]] = []
    before: Text | None = None
    for text in ordered:
        shared = 0
        if before is not None and before.namespace == text.namespace:
            shared = common_prefix(before.tokens, text.tokens)
        required += _close(stack, shared)
        stack.append([shared, len(text.tokens), text.prompt])
        prompt += text.prompt
        distinct += len(text.tokens) - shared
        before = text
    return Optimum(prompt, required + _close(stack, 0), distinct)


def _close(stack: list[list[int]], depth: int) -> int:
    """Take what lies below `depth` off the stack: how many of its nodes are in the output of no text."""
    required = 0
    while stack and stack[-1][1] > depth:
        start, end, least = stack.pop()
        required += max(0, min(end, least) - max(start, depth))
        if start < depth:
            stack.append([start, depth, least])
        elif stack:
            # Every text through this run goes through the one above it.
            stack[-1][2] = min(stack[-1][2], least)
    return required
