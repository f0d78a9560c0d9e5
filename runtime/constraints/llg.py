"""Constraints that llguidance decides: JSON Schema, grammars, and regexes too large for a table.

It is always given our own vocabulary, with control tokens blanked, and never hears of end tokens: those are ours
(CONSTRAINTS.md §0.6, §4.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llguidance
import numpy as np
from llguidance.numpy import fill_next_token_bitmask

from palmette.runtime.constraints.closing import Place
from palmette.runtime.constraints.endings import Endings
from palmette.runtime.constraints.forcing import encode_after
from palmette.runtime.constraints.vocabulary import Vocabulary

# A compiled grammar does not say what it holds; 1 to 3 MB were measured (CONSTRAINTS.md §3.1), growing with its text.
_BASE_BYTES = 2 << 20
_BYTES_PER_CHARACTER = 64


class _Tokens:
    """What llguidance's TokenizerWrapper reads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # A leading byte 0xFF marks a special token inside llguidance. No text in UTF-8 holds that byte.
        self.tokens = [
            b"" if spelling is None or b"\xff" in spelling else spelling for spelling in vocabulary.token_bytes
        ]
        self.eos_token_id = min(vocabulary.end_ids)
        self.bos_token_id = None
        self.tokens[self.eos_token_id] = b"<end>"
        self.special_token_ids = [i for i, b in enumerate(self.tokens) if not b or i in vocabulary.end_ids]

    def __call__(self, text: bytes | str) -> list[int]:
        # Tokens that do not spell the text as it stands would have llguidance force other text.
        return self._vocabulary.spell(text.encode() if isinstance(text, str) else bytes(text)) or []


def tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """llguidance's view of the vocabulary. ValueError when there is no end token to give it."""
    if not vocabulary.end_ids:
        raise ValueError("the vocabulary has no end token")
    wrapped: Any = llguidance.TokenizerWrapper(_Tokens(vocabulary))
    return llguidance.LLTokenizer(wrapped)


def limits() -> llguidance.LLParserLimits:
    """llguidance's own bounds on a hostile grammar; what goes over them becomes an error, not a long wait."""
    return llguidance.LLParserLimits()


class LlgConstraint:
    """A grammar compiled by llguidance: its root matcher, copied for each request."""

    def __init__(
        self, root: llguidance.LLMatcher, grammar: str, vocabulary: Vocabulary, place: Callable[[], Place] | None = None
    ) -> None:
        """root: fresh, not in error. place: the start of the text as the closing needs it, where somebody knows."""
        self.root = root
        self._place = place
        self.vocabulary = vocabulary
        self.nbytes = _BASE_BYTES + _BYTES_PER_CHARACTER * len(grammar)

    def start(self) -> LlgMatcher:
        return LlgMatcher(self, self.root.deep_copy(), [])

    def place(self) -> Place | None:
        return None if self._place is None else self._place()

    def endings(self) -> Endings:
        return Endings(self.start(), self.vocabulary)

    def accepts(self, text: bytes) -> bool:
        tokens = self.vocabulary.segment(text)
        if tokens is None:
            return False
        matcher = self.root.deep_copy()
        return matcher.try_consume_tokens(tokens) == len(tokens) and not matcher.is_error() and matcher.is_accepting()


class LlgMatcher:
    """llguidance's matcher behind our protocol. It is put in error for good by a wrong token, so every token is
    asked about before it is consumed; end tokens are counted here and never reach it."""

    __slots__ = ("_ends", "_matcher", "_of", "_tokens")

    def __init__(self, of: LlgConstraint, matcher: llguidance.LLMatcher, tokens: list[int]) -> None:
        self._of = of
        self._matcher = matcher
        self._tokens = tokens
        self._ends = 0

    def fill(self, row: np.ndarray) -> bool:
        vocabulary = self._of.vocabulary
        if self._ends or self._matcher.is_stopped():
            row[:] = vocabulary.end_bits if self.allows_end() else 0
            return True
        target = row if row.flags.c_contiguous and row.dtype == np.int32 else np.zeros(vocabulary.words, np.int32)
        forced = self._matcher.compute_ff_bytes()
        if forced and vocabulary.segment(forced) is None:
            # llguidance takes it that any text can be spelled, and its mask is no use where that is not so.
            agree = [t for t in vocabulary.agreeing(forced) if self._matcher.validate_tokens([t]) == 1]
            target[:] = vocabulary.row(np.array(agree, np.int64))
        else:
            fill_next_token_bitmask(self._matcher, target.reshape(1, -1), 0)
        if self._matcher.is_error():
            # A limit was met in the middle of a text. An empty row says "no token", which the engine reports.
            row[:] = 0
            return True
        target &= ~vocabulary.end_bits
        used = np.flatnonzero(target)
        if len(used) == 1 and int(target[used[0]]).bit_count() == 1:
            # Where the tokenizer's own next token is certain, llguidance's mask has that one only. Which other tokens
            # spell the beginning of the forced text is for `forced` to decide, not for the mask.
            for _, token in vocabulary.matches(forced):
                target.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))
        if self._matcher.is_accepting():
            target |= vocabulary.end_bits
        if target is not row:
            row[:] = target
        return True

    def advance(self, token: int) -> bool:
        vocabulary = self._of.vocabulary
        if token in vocabulary.end_ids:
            if not self.allows_end():
                return False
            self._ends += 1
            return True
        if self._ends or not 0 <= token < vocabulary.width or self._matcher.is_stopped():
            return False
        if self._matcher.validate_tokens([token]) != 1 or not self._matcher.consume_token(token):
            return False
        self._tokens.append(token)
        return True

    def rollback(self, n: int) -> None:
        if not 0 <= n <= len(self._tokens) + self._ends:
            raise ValueError(f"cannot roll back {n} of {len(self._tokens) + self._ends} tokens")
        ends = min(n, self._ends)
        self._ends -= ends
        n -= ends
        if not n:
            return
        del self._tokens[len(self._tokens) - n :]
        if self._matcher.is_error() or not self._matcher.rollback(n):
            self._matcher = self._of.root.deep_copy()
            self._matcher.try_consume_tokens(self._tokens)

    def fork(self) -> LlgMatcher:
        twin = LlgMatcher(self._of, self._matcher.deep_copy(), self._tokens.copy())
        twin._ends = self._ends
        return twin

    def forced(self, recent: Sequence[int] = ()) -> list[int]:
        vocabulary = self._of.vocabulary
        if self._ends or vocabulary.encode is None or self._matcher.is_stopped():
            return []
        # llguidance holds back what a longer token could span, but knows only the text under the constraint: what
        # stands before it may pull the first characters into other tokens.
        tokens = [t for t in self._matcher.compute_ff_tokens() if vocabulary.token_bytes[t] is not None]
        natural = encode_after(vocabulary, recent, vocabulary.text(tokens))
        same = 0
        while same < min(len(tokens), len(natural)) and tokens[same] == natural[same]:
            same += 1
        return tokens[:same]

    def allows_end(self) -> bool:
        return bool(self._ends) or (not self._matcher.is_error() and self._matcher.is_accepting())

    def done(self) -> bool:
        return bool(self._ends) or (self._matcher.is_stopped() and self.allows_end())

    def problem(self) -> str:
        return str(self._matcher.get_error()).strip().partition("\n")[0] if self._matcher.is_error() else ""
