"""Token healing: a prompt's last tokens are spelled anew with what follows, by the model's exact probabilities.

A prompt may end inside what the model would have written as one token ("http", ":" where it knows "://"), and what it
says behind such an end is odd. So the last tokens are taken back, and what follows is drawn under the condition that
the text begins with their bytes, `rest`. A *cover* is a sequence of tokens that does, and does not without its last:

    kept tokens | rest = " ans"
                | " ans"                    its probability: the product of those that the model gives its tokens, each
                | " answer"                 over the whole vocabulary
                | " an"  "sw"               drawn: that, divided by the sum over all covers
                | " a"   "n"   "s"

This is the distribution of Vieira et al. 2024, "From Language Models over Tokens to Language Models over Characters"
(arXiv:2412.03719), and of Phan et al. 2024, "Exact Byte-Level Probabilities from Tokenized Language Models"
(arXiv:2410.09303), who leave out what a tokenizer would not have written. It is not that of the common walk, which
masks and renormalises at each token, and so prefers beginnings that hardly anything follows.

What precedes a cover's last token is a node of a tree, and each node is computed once, as in a `select`. The tree grows
level by level, the most probable nodes first, until what is left is too improbable to matter: " international" can be
spelled in thousands of ways, of which a few dozen have a probability to speak of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import SamplingParams, TokenLogprob
from palmette.runtime.sampler import Drawn, Row, Tally, no_numbers, pick, token_logprobs, uniform, weigh
from palmette.runtime.score import ScoreJob
from palmette.torch_later import Array, as_numpy, torch

# A token that crosses the prompt's end is looked for in so many of its last tokens.
_TOKENS = 8
# The most nodes of a tree. Where there are more, the least probable ones are left out.
_NODES = 256
# Below this temperature the most probable cover is certain: the least difference of two logits, 1e-45, is 1e215 then.
# At ever lower ones the greatest, 1e39, would leave the range of a float64.
_COLDEST = 1e-260
# Ways whose probability is less than this share of that of all covers found so far are not followed.
_NEGLIGIBLE = 1e-12


class Tail(NamedTuple):
    """A prompt whose last `healed` tokens, of the bytes `rest`, are taken back."""

    kept: tuple[int, ...]
    rest: bytes
    healed: int


def find_tail(
    prompt: tuple[int, ...], vocabulary: Vocabulary, *, healable: int | None, fixed: frozenset[int], max_context: int
) -> Tail | None:
    """The longest tail in whose first token a token that goes on beyond the prompt may begin; None where there is none.

    healable: how many of the last tokens may be taken back, None: all. Control tokens and those of `fixed` stay, and
    one token for the model to read; so does what would leave no room in the context for the longest cover.
    """
    limit = min(_TOKENS, len(prompt) - 1, len(prompt) if healable is None else healable)
    found: Tail | None = None
    rest = b""
    for back in range(1, limit + 1):
        token = prompt[-back]
        spelling = vocabulary.token_bytes[token]
        if spelling is None or token in fixed:
            break
        rest = spelling + rest
        kept = prompt[:-back]
        if len(kept) + len(rest) >= max_context:
            break
        if any(vocabulary.extends(rest[at:]) for at in range(len(spelling))):
            found = Tail(kept, rest, back)
    return found


@dataclass(frozen=True, slots=True)
class Cover:
    """How the text goes on from the kept tokens.

    extra: what the last token spells beyond the bytes taken back; where it is not empty, that token counts as
    generated, with this log-probability where such are wanted. nodes: those of the tree that it passes.
    """

    tokens: tuple[int, ...]
    extra: bytes
    logprob: TokenLogprob | None
    nodes: tuple[int, ...]

    @property
    def inside(self) -> tuple[int, ...]:
        """The tokens that spell nothing but the prompt."""
        return self.tokens[:-1] if self.extra else self.tokens


class _Step(NamedTuple):
    """What may come where a certain end of `rest` is still to be spelled. ends: int64, ascending: the tokens that begin
    with it. inner: those that spell a part of it, each with the place in `rest` where it ends."""

    ends: np.ndarray
    inner: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Node:
    """Tokens behind the kept ones, up to place `at` of `rest`.

    reach: log of their probability. ends, inner: float32, the logits of its step's tokens, once they are read; top,
    norm: a token's log-probability is (logit - top) / heat - norm.
    """

    token: int
    parent: int
    at: int
    reach: float
    ends: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    inner: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    top: float = 0.0
    norm: float = 0.0


class CoverTree:
    """The covers of a tail under given sampling parameters; node -1 is the end of the kept tokens.

    Each token counts as plain sampling would have it there: penalties and bias, then temperature. Top-k, top-p and
    min-p choose among the covers, as under a constraint they choose among what it allows. At temperature 0 the most
    probable cover at temperature 1 is taken. No cover has a token of `banned`. legal: which of some texts the last
    token may bring along; None: all.

    limit: the most nodes that will be asked for.
    """

    def __init__(
        self,
        tail: Tail,
        vocabulary: Vocabulary,
        params: SamplingParams,
        *,
        banned: frozenset[int],
        legal: Callable[[set[bytes]], set[bytes]] | None = None,
    ) -> None:
        self.tail = tail
        self._vocabulary = vocabulary
        self._params = params
        self._heat = max(params.temperature, _COLDEST) if params.temperature else 1.0
        self._steps = self._look_up(banned, legal)
        self._nodes = [_Node(-1, -1, 0, 0.0)]
        self._grown = 0
        self.limit = min(_NODES, self._count())

    def _look_up(self, banned: frozenset[int], legal: Callable[[set[bytes]], set[bytes]] | None) -> tuple[_Step, ...]:
        """The step of each place in `rest`."""
        rest, vocabulary = self.tail.rest, self._vocabulary
        steps = []
        for at in range(len(rest)):
            ends = [token for token in vocabulary.beginning(rest[at:]).tolist() if token not in banned]
            parts = [(token, end) for end, token in vocabulary.matches(rest, at) if end < len(rest)]
            steps.append((ends, tuple(part for part in parts if part[0] not in banned)))
        if legal is not None:
            extras = [[self._extra(token, at) for token in ends] for at, (ends, _) in enumerate(steps)]
            fine = {b""} | legal({extra for line in extras for extra in line if extra})
            for at, (ends, inner) in enumerate(steps):
                steps[at] = [token for token, extra in zip(ends, extras[at], strict=True) if extra in fine], inner
        return tuple(_Step(np.array(ends, np.int64), inner) for ends, inner in steps)

    @property
    def crosses(self) -> bool:
        """Whether any cover goes on beyond `rest`: only then is it worth while."""
        return any(self._extra(token, at) for at, step in enumerate(self._steps) for token in step.ends.tolist())

    def _extra(self, token: int, at: int) -> bytes:
        """What a token at place `at` of `rest` spells beyond it."""
        return (self._vocabulary.token_bytes[token] or b"")[len(self.tail.rest) - at :]

    def _count(self) -> int:
        """How many nodes there are in all, that of the kept tokens' end aside."""
        ways = [1] + [0] * (len(self._steps) - 1)
        for at, step in enumerate(self._steps):
            for _, end in step.inner:
                ways[end] += ways[at]
        return sum(ways) - 1

    def read(self, node: int, logits: Array) -> None:
        """Take the logits, float32 [V], behind a node. Once more changes nothing."""
        this = self._nodes[node + 1]
        values = np.array(as_numpy(logits))
        repeats = self._params.repetition_penalty != 1.0
        if repeats or self._params.logit_bias:
            tally = Tally([*self.tail.kept, *self._spelled(self._way(node))]) if repeats else None
            weigh(torch.from_numpy(values)[None], [Row(self._params, 0, 0, tally=tally)])
        this.top = float(values.max())
        this.norm = math.log(float(np.exp(self._scaled(this, values)).sum()))
        step = self._steps[this.at]
        this.ends = values[step.ends]
        this.inner = values[[token for token, _ in step.inner]]

    def grow(self) -> list[tuple[int, int]]:
        """Once all nodes are read: further ones that are worth it, as (token, parent); [] where there are none."""
        floor = self._found()
        children = []
        for index in range(self._grown, len(self._nodes)):
            node = self._nodes[index]
            reaches = self._logprobs(node, node.inner).tolist()
            for (token, at), reach in zip(self._steps[node.at].inner, reaches, strict=True):
                if reach > floor:
                    children.append(_Node(token, index - 1, at, reach))
        self._grown = len(self._nodes)
        children.sort(key=lambda child: -child.reach)
        del children[self.limit + 1 - len(self._nodes) :]
        self._nodes += children
        return [(child.token, child.parent) for child in children]

    def _found(self) -> float:
        """Log of what a way must reach to be followed: all that it may still add is less."""
        known = self.logprobs()
        top = float(known.max(initial=-math.inf))
        if self._params.temperature == 0 or top == -math.inf:
            return top
        return top + math.log(float(np.exp(known - top).sum()) * _NEGLIGIBLE)

    def _logprobs(self, node: _Node, logits: np.ndarray) -> np.ndarray:
        """Logs of the probabilities, float64, of the ways through a node to tokens with these logits."""
        return node.reach - node.norm + self._scaled(node, logits)

    def _scaled(self, node: _Node, logits: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return (logits.astype(np.float64) - node.top) / self._heat

    def logprobs(self) -> np.ndarray:
        """Logs of the covers' probabilities, float64, by node and token; their sum is that of `rest`."""
        return np.concatenate([self._logprobs(node, node.ends) for node in self._nodes])

    def choose(self, seeds: Sequence[int]) -> list[Cover]:
        """The covers that samples with these seeds take. BackendError where the model gave no numbers."""
        logprobs = self.logprobs()
        top = logprobs.max()
        if not math.isfinite(top):
            raise no_numbers(f"where the prompt's end, {self.tail.rest.decode(errors='replace')!r}, is healed")
        if self._params.temperature == 0:
            # Of equally probable ones that with the lower ids.
            best = min((self.cover(int(at)) for at in np.flatnonzero(logprobs == top)), key=lambda cover: cover.tokens)
            return [best] * len(seeds)
        weights = np.exp(logprobs - top)
        points = [uniform(seed, len(self.tail.kept)) for seed in seeds]
        return [self.cover(self._pick(weights, point)) for point in points]

    def _pick(self, weights: np.ndarray, point: float) -> int:
        """As the sampler does. Where nothing is kept out, that is the first running sum above the point."""
        params = self._params
        if params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0:
            return pick(torch.from_numpy(weights)[None].clone(), [params], [point])[0]
        sums = np.cumsum(weights)
        total = sums[-1]
        return int(np.searchsorted(sums, min(point * total, np.nextafter(total, 0.0)), side="right"))

    def cover(self, index: int) -> Cover:
        """The cover at this place of `logprobs`."""
        at = 0
        while index >= len(self._nodes[at].ends):
            index -= len(self._nodes[at].ends)
            at += 1
        node = self._nodes[at]
        ends = self._steps[node.at].ends
        token = int(ends[index])
        extra = self._extra(token, node.at)
        way = self._way(at - 1)
        logprob = self._logprob(token, ends, node.ends) if extra and self._params.logprobs is not None else None
        return Cover((*self._spelled(way), token), extra, logprob, way)

    def _logprob(self, token: int, ends: np.ndarray, logits: np.ndarray) -> TokenLogprob:
        """As the sampler has it where nothing but `ends` is allowed."""
        row = torch.full((1, self._vocabulary.width), -torch.inf)
        row[0, torch.from_numpy(ends)] = torch.from_numpy(logits)
        params = self._params
        return token_logprobs(row, [token], [params.logprobs or 0], [params.logprob_token_ids])[0]

    def _way(self, node: int) -> tuple[int, ...]:
        """The nodes down to this one, which is the last."""
        way: list[int] = []
        while node >= 0:
            way.append(node)
            node = self._nodes[node + 1].parent
        return tuple(reversed(way))

    def _spelled(self, way: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._nodes[node + 1].token for node in way)


class CoverJob(ScoreJob):
    """The kept tokens of a tail and the tree of its covers, which grows as it is read."""

    def __init__(self, tree: CoverTree, answer: Callable[[ScoreJob | BaseException], None], **account: Any) -> None:
        super().__init__(tree.tail.kept, (), (), tree.read, answer, room=tree.limit, **account)
        self._grow = tree.grow

    def go_on(self, drawn: Drawn | None) -> None:
        """See Job.go_on: answers once every node that is worth it is computed."""
        if self.remaining == 0:
            for token, parent in self._grow():
                self.tokens[self.length] = token
                self.parents.append(parent)
                self.length += 1
        super().go_on(drawn)
