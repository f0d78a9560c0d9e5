"""The one protocol of all constraints: where a text under a constraint stands, and which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from palmette.runtime.constraints.closing import Place
    from palmette.runtime.constraints.endings import Endings
    from palmette.runtime.constraints.vocabulary import Vocabulary


class Matcher(Protocol):
    """A position in a constrained text, as a value: it can be forked, rolled back and advanced token by token.

    A mask row is int32 [ceil(V / 32)]; token t is bit `t & 31` of word `t >> 5`, 1 = allowed. Control tokens, unused
    ids and padding are never allowed; the end tokens are allowed exactly where `allows_end()`.
    """

    def fill(self, row: np.ndarray) -> bool:
        """Overwrites the whole row with the tokens that may come next. False would mean "all of them, row unread"."""
        ...

    def advance(self, token: int) -> bool:
        """Takes one token. False: it may not come here, and the matcher is as it was."""
        ...

    def rollback(self, n: int) -> None:
        """Undoes the last n tokens that were taken. ValueError when there were fewer."""
        ...

    def fork(self) -> Matcher:
        """An independent copy."""
        ...

    def forced(self, recent: Sequence[int] = ()) -> list[int]:
        """Tokens that must come next, as the tokenizer itself would write them after the tokens `recent` (the last
        few of the sequence, prompt included); may be empty. Does not advance."""
        ...

    def allows_end(self) -> bool:
        """Whether the text may end here."""
        ...

    def done(self) -> bool:
        """Complete, and nothing but the end can follow (or an end token was taken)."""
        ...

    def problem(self) -> str:
        """Why no token is allowed, where that is not the language's doing (a limit was met); else ""."""
        ...


class CompiledConstraint(Protocol):
    """A constraint ready for use over one vocabulary; shared by all requests that ask for it."""

    vocabulary: Vocabulary

    @property
    def nbytes(self) -> int:
        """Memory it holds, in bytes (an estimate for engines that do not say)."""
        ...

    def start(self) -> Matcher:
        """A new matcher at the start of the text."""
        ...

    def place(self) -> Place | None:
        """The start of the text as one from which the shortest completion is known; None where it is not."""
        ...

    def endings(self) -> Endings:
        """Where a text may end, for one that is still to come."""
        ...

    def accepts(self, text: bytes) -> bool:
        """Whether some tokens of the vocabulary spell `text` and it is complete under the constraint."""
        ...
