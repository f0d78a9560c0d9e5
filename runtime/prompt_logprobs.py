"""Log-probabilities of a prompt's own tokens, read while the prompt is computed."""

from __future__ import annotations

from collections.abc import Sequence

from palmette.runtime.protocol import TokenLogprob
from palmette.runtime.sampler import token_logprobs
from palmette.torch_later import Array, torch


class PromptLogprobs:
    """Those of positions start .. len(prompt) - 1, in order. A token's distribution lies behind the token before it:

        position  0  1  2  3  4
        row          0  1  2  3       start = 2: rows 1, 2, 3 are read; row 1 must be computed for it

    They are read once, in any chunks: what a preemption takes away is only computed again where it is still missing.
    """

    def __init__(self, prompt: Sequence[int], start: int, top: int, asked: Sequence[int]) -> None:
        """top: how many of the best tokens are told at each position; asked: ids that are told beside them."""
        self._prompt = prompt
        self._start = start
        self._top = top
        self._asked = asked
        # Nothing precedes the first token.
        self._found: list[TokenLogprob | None] = [None] if start == 0 else []

    @property
    def first_row(self) -> int | None:
        """The first row whose logits are missing; None: none is. What lies before it may come from the cache."""
        position = self._start + len(self._found)
        return position - 1 if position < len(self._prompt) else None

    def rows(self, start: int, end: int) -> Sequence[int]:
        """The rows among start:end that are to be read."""
        first = self.first_row
        return () if first is None else range(max(start, first), min(end, len(self._prompt) - 1))

    def read(self, rows: Sequence[int], logits: Array) -> None:
        """Take the logits, float32 [R, V], of rows that `rows` named, which follow those that were read before."""
        tokens = [self._prompt[row + 1] for row in rows]
        table = torch.as_tensor(logits)
        self._found += token_logprobs(table, tokens, [self._top] * len(rows), [self._asked] * len(rows))

    def found(self) -> tuple[TokenLogprob | None, ...]:
        """What has been read so far."""
        return tuple(self._found)
