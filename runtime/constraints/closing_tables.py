"""What closing a text in time needs to know of a vocabulary; made once for each."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache

import numpy as np

from palmette.runtime.constraints.trie import ByteTrie
from palmette.runtime.constraints.vocabulary import Vocabulary

_LONGEST = 32  # bytes of a token that a closing is spelled with
_LONG = 512  # bytes of a text of which the ends are not kept
_MOST_KEPT = 100_000  # suffixes of closings


class Tables:
    """plain: int16 [V], how many characters a token is that may stand inside any JSON string as it is, -1 for all
    others. odd: a trie of the others. inside: int16 [V], where in a token's bytes what follows may stand inside any
    JSON string, if only as the beginning of a character or an escape. opens: how many arrays and objects one token can
    begin at the most."""

    def __init__(self, vocabulary: Vocabulary, banned: frozenset[int]) -> None:
        self.vocabulary = vocabulary
        self.plain = np.full(vocabulary.width, -1, np.int16)
        self.inside = np.zeros(vocabulary.width, np.int16)
        odd: list[tuple[bytes, int]] = []
        self.opens = 0
        self._ids: dict[bytes, int] = {}
        for token, spelling in enumerate(vocabulary.token_bytes):
            if spelling is None:
                continue
            if token not in banned and len(spelling) <= _LONGEST:
                self._ids.setdefault(spelling, token)
            self.opens = max(self.opens, spelling.count(b"{") + spelling.count(b"["))
            size = _characters(spelling)
            if size < 0:
                odd.append((spelling, token))
                self.inside[token] = _inside(spelling)
            self.plain[token] = size
        self.odd = ByteTrie(odd)
        self._fewest: dict[bytes, tuple[int, int] | None] = {b"": (0, -1)}

    def count(self, text: bytes) -> int | None:
        """The fewest tokens that spell `text`; None where none do."""
        found = self._fewest.get(text)
        if found is None:
            found = self._behind(text)[0]
        return None if found is None else found[0]

    def spell(self, text: bytes) -> list[int] | None:
        """Those tokens."""
        behind, tokens, at = self._behind(text), list[int](), 0
        while at < len(text):
            found = behind[at]
            if found is None:
                return None
            tokens.append(found[1])
            at += len(self.vocabulary.token_bytes[found[1]] or b"")
        return tokens

    def _behind(self, text: bytes) -> list[tuple[int, int] | None]:
        """From each place of the text on: how many tokens, and the first."""
        # Another thread may begin a new one meanwhile.
        fewest = self._fewest
        if len(fewest) > _MOST_KEPT:
            fewest = self._fewest = {b"": (0, -1)}
        # Texts end alike, and what is known of an end is kept; of a long one that would be the square of it.
        kept = len(text) <= _LONG
        behind: list[tuple[int, int] | None] = [(0, -1)] * (len(text) + 1)
        for at in range(len(text) - 1, -1, -1):
            rest = text[at:] if kept else text[at : at + _LONGEST]
            if kept and rest in fewest:
                behind[at] = fewest[rest]
                continue
            best: tuple[int, int] | None = None
            for size in range(min(len(rest), _LONGEST), 0, -1):
                token = self._ids.get(rest[:size])
                after = behind[at + size] if token is not None else None
                if token is not None and after is not None and (best is None or after[0] + 1 < best[0]):
                    best = (after[0] + 1, token)
            behind[at] = best
            if kept:
                fewest[rest] = best
        fewest[text] = behind[0]
        return behind


def _characters(spelling: bytes) -> int:
    """The number of characters of a text that needs no escape in a JSON string; -1 for any other."""
    if b'"' in spelling or b"\\" in spelling or min(spelling) < 0x20:
        return -1
    try:
        return len(spelling.decode())
    except UnicodeDecodeError:
        return -1


_HEX = b"[0-9a-fA-F]"
_HIGH = b"[dD][89abAB]" + _HEX * 2
# Escapes: whole, and begun so that some character can come of it.
_WHOLE = rb"\\(?:[\"\\/bfnrt]|u(?:(?![dD][89a-fA-F])" + _HEX * 4 + b"|" + _HIGH + rb"\\u[dD][c-fC-F]" + _HEX * 2 + b"))"
_SECOND = rb"(?:\\(?:u(?:[dD](?:[c-fC-F]" + _HEX + b"?)?)?)?)?"
_BEGUN = rb"\\(?:u(?:(?![dD][89a-fA-F])" + _HEX + b"{0,3}|[dD][89abAB]" + _HEX + b"?|" + _HIGH + _SECOND + b")?)?"
_INSIDE = re.compile(rb"(?:[^\"\\\x00-\x1f]|" + _WHOLE + b")*(?:" + _BEGUN + b")?")


def _inside(spelling: bytes) -> int:
    """The first place behind its quotes from which the rest of a token may stand inside a string; its length where
    there is none."""
    at = 0
    while not _INSIDE.fullmatch(spelling, at) or not _utf8_begins(spelling[at:]):
        at += 1
    return at


def _utf8_begins(text: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True


@lru_cache(maxsize=8)
def tables_of(vocabulary: Vocabulary, banned: frozenset[int] = frozenset()) -> Tables:
    """banned: tokens that no closing may be spelled with."""
    return Tables(vocabulary, banned)
