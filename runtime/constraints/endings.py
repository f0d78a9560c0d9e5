"""Where a text under a constraint may end, byte by byte."""

from __future__ import annotations

from collections import deque

from palmette.runtime.constraints.matcher import Matcher
from palmette.runtime.constraints.vocabulary import Vocabulary


class Endings:
    """The places of a text, which comes in pieces, before which it may be cut: what is left is complete, and tokens
    spell what is left of the piece.

    The text is followed only as far as somebody asks, by a matcher of its own, and what was found is kept: the cost
    grows with the text, not with the questions. To each place of a piece the matcher comes by the token that begins
    last, so that where the vocabulary has all single bytes each place is one step from the one before; where it lacks
    some, the matcher is taken back to where the way to the next place parts:

        piece  a  b  c        tokens a, ab, c        ways  1: a    2: ab    3: ab, c
    """

    def __init__(self, matcher: Matcher, vocabulary: Vocabulary) -> None:
        """matcher: at the start of the text."""
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._pieces: deque[bytes] = deque()
        self._found = [matcher.allows_end()]
        # A limit of the matcher was met: nothing is known of what comes behind.
        self._lost = False
        # Of the piece that is followed: where which token that ends there begins, and the places that were passed.
        self._steps: dict[int, tuple[int, int]] = {}
        self._way: list[int] = []

    def add(self, piece: bytes) -> None:
        """The text goes on by what a token spells."""
        if piece:
            self._pieces.append(piece)

    def at(self, place: int) -> bool:
        """Whether the first `place` bytes are complete. IndexError beyond the text."""
        while place >= len(self._found):
            self._follow(self._pieces.popleft())
        return self._found[place]

    def _follow(self, piece: bytes) -> None:
        self._steps, self._way = {}, []
        for at in range(len(piece)):
            if at == 0 or at in self._steps:
                for end, token in self._vocabulary.matches(piece, at):
                    self._steps[end] = (at, token)
        for end in range(1, len(piece) + 1):
            self._found.append(end in self._steps and self._reach(end) and self._matcher.allows_end())
        self._lost = self._lost or len(piece) not in self._steps

    def _reach(self, place: int) -> bool:
        """Take the matcher to a place of the piece; whether it got there."""
        begin, token = self._steps[place]
        way = self._way
        while way and way[-1] > begin:
            way.pop()
            self._matcher.rollback(1)
        if begin and (not way or way[-1] < begin):
            self._reach(begin)
        self._lost = self._lost or not self._matcher.advance(token)
        if not self._lost:
            way.append(place)
        return not self._lost
