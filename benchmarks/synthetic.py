"""Seeded text of a given length in tokens. What it says is of no matter to caches and schedules; how long it is, is."""

from __future__ import annotations

import string
from itertools import accumulate
from random import Random

from palmette.runtime.protocol import Codec

_WORDS = 2000
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstv" for vowel in "aeiou"]
_ALNUM = string.ascii_letters + string.digits
# One token is at most so many letters of a random string, in the vocabularies there are.
_LETTERS_PER_TOKEN = 6


class Writer:
    """Writes by the measure of one tokenizer. Words are drawn by Zipf's law: the r-th one with weight 1/r."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._words = _vocabulary()
        self._weights = list(accumulate(1 / rank for rank in range(1, len(self._words) + 1)))
        self._costs: dict[str, int] = {}

    def count(self, text: str) -> int:
        """Tokens of a text that stands inside another."""
        return len(self._codec.encode(text))

    def text(self, random: Random, tokens: int) -> str:
        """Sentences of at most `tokens` tokens, fewer by less than a word; never empty."""
        pieces: list[str] = []
        left, until_stop = tokens, random.randint(6, 14)
        while True:
            (word,) = random.choices(self._words, cum_weights=self._weights)
            if not pieces:
                piece = word.capitalize()
            elif until_stop == 0:
                piece, until_stop = f". {word.capitalize()}", random.randint(6, 14)
            else:
                piece = f" {word}"
            left -= self._cost(piece)
            if left < 0 and pieces:
                return "".join(pieces)
            until_stop -= 1
            pieces.append(piece)

    def noise(self, random: Random, tokens: int) -> str:
        """Random letters and digits without blanks, about `tokens` tokens."""
        letters = "".join(random.choices(_ALNUM, k=tokens * _LETTERS_PER_TOKEN))
        return self._codec.decode(self._codec.encode(letters)[:tokens])

    def _cost(self, piece: str) -> int:
        # Tokenizers split text at words first, so the pieces' costs add up.
        cost = self._costs.get(piece)
        if cost is None:
            cost = self._costs[piece] = self.count(piece)
        return cost


def _vocabulary() -> list[str]:
    """Made-up words, the frequent ones short: always the same."""
    random = Random("palmette")
    words: dict[str, None] = {}
    while len(words) < _WORDS:
        syllables = 1 + (len(words) > 40) + (len(words) > 400) + random.randint(0, 1)
        words["".join(random.choices(_SYLLABLES, k=syllables))] = None
    return list(words)
