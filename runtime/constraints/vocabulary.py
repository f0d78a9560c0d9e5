"""The model's true vocabulary, as bytes: what every constraint is compiled against."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from palmette.runtime.constraints.trie import ByteTrie


class Vocabulary:
    """What each token id spells. Built once per tokenizer, read only afterwards.

    token_bytes: per id the bytes that it stands for, None for control, unused and padding ids (never allowed);
    width: V, the width of the logits; end_ids: allowed only where a text may end; words: ceil(V / 32), the length of a
    mask row; trie: the ordinary tokens; control: ids of the control tokens by their spelling; fingerprint: equal for
    equal vocabularies.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        *,
        width: int,
        end_ids: frozenset[int],
        encode: Callable[[bytes], list[int]] | None = None,
        control: Mapping[str, int] | None = None,
    ) -> None:
        """encode: text as UTF-8 to the tokenizer's own ids, with no control tokens read from it and nothing put in
        front; None where there is none, and then nothing is ever forced. control: ids of the control tokens by how they
        are written. ValueError when the ids do not fit `width`."""
        if len(token_bytes) > width:
            raise ValueError(f"{len(token_bytes)} tokens do not fit logits of width {width}")
        if any(not 0 <= i < width for i in end_ids):
            raise ValueError(f"an end token lies outside 0..{width - 1}: {sorted(end_ids)}")
        self.width = width
        self.words = -(-width // 32)
        self.end_ids = end_ids
        self.encode = encode
        self.control = dict(control or {})
        spelled = list(token_bytes) + [None] * (width - len(token_bytes))
        # An end token is its own thing even where the tokenizer gives it bytes; a token without bytes moves nothing.
        self.token_bytes: list[bytes | None] = [
            None if i in end_ids or not spelling else spelling for i, spelling in enumerate(spelled)
        ]
        self.trie = ByteTrie([(b, i) for i, b in enumerate(self.token_bytes) if b is not None])
        self.longest = self.trie.depth
        self.end_bits = np.zeros(self.words, np.int32)
        for i in end_ids:
            self.end_bits.view(np.uint32)[i >> 5] |= np.uint32(1 << (i & 31))

    @cached_property
    def fingerprint(self) -> str:
        spelled = (b"-" if spelling is None else b"%d:" % len(spelling) + spelling for spelling in self.token_bytes)
        return hashlib.sha256(repr((self.width, sorted(self.end_ids))).encode() + b"".join(spelled)).hexdigest()

    @classmethod
    def of_bytes(cls) -> Vocabulary:
        """The 256 single bytes, and one end token with id 256."""
        return cls([bytes([b]) for b in range(256)], width=257, end_ids=frozenset({256}), encode=list)

    def text(self, tokens: Sequence[int]) -> bytes:
        """What the tokens spell; those without bytes spell nothing."""
        return b"".join(self.token_bytes[t] or b"" for t in tokens)

    def row(self, allowed: np.ndarray) -> np.ndarray:
        """A mask row, int32 [words], from token ids."""
        bits = np.zeros(self.words * 32, bool)
        bits[allowed] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    def matches(self, text: bytes, at: int = 0) -> Iterator[tuple[int, int]]:
        """The tokens that spell a part of `text` from `at` on, each with the place where it ends."""
        node = 0
        for end in range(at, len(text)):
            node = self.trie.child(node, text[end])
            if node < 0:
                return
            for token in self.trie.ends_at(node):
                yield end + 1, int(token)

    def beginning(self, text: bytes) -> np.ndarray:
        """The tokens that begin with `text`, or are it; int64, ascending."""
        node = self.trie.find(text)
        return self.trie.below(node) if node >= 0 else np.empty(0, np.int64)

    def extends(self, text: bytes) -> bool:
        """Whether a token begins with `text` and goes on."""
        node = self.trie.find(text)
        return node >= 0 and bool(self.trie.lo[node] < self.trie.hi[node])

    def agreeing(self, text: bytes) -> list[int]:
        """The tokens that begin `text` or go on beyond it."""
        within = [token for end, token in self.matches(text) if end < len(text)]
        return sorted([*within, *self.beginning(text).tolist()])

    def spell(self, text: bytes) -> list[int] | None:
        """Tokens that spell `text`: the tokenizer's own where they do, else some; None where there are none. (A
        tokenizer may drop or rewrite what it cannot spell.)"""
        tokens = [] if self.encode is None else self.encode(text)
        return tokens if self.text(tokens) == text else self.segment(text)

    def segment(self, text: bytes) -> list[int] | None:
        """Some tokens that spell `text` (not in general the tokenizer's own), or None where none do."""
        # Whether a position can be reached is decided front to back, and each keeps the token that reached it first.
        reached: dict[int, tuple[int, int]] = {0: (-1, -1)}
        for at in range(len(text)):
            if at in reached:
                for end, token in self.matches(text, at):
                    reached.setdefault(end, (at, token))
        if len(text) not in reached:
            return None
        tokens, at = [], len(text)
        while at:
            at, token = reached[at]
            tokens.append(token)
        return tokens[::-1]
