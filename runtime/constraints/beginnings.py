"""Which texts may begin a text under a constraint: asked of many at once, where a token brings text with it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from palmette.runtime.constraints.matcher import Matcher
from palmette.runtime.constraints.vocabulary import Vocabulary


def legal_beginnings(matcher: Matcher, vocabulary: Vocabulary, texts: Iterable[bytes]) -> set[bytes]:
    """Those of `texts`, none of them empty, that may come next as far as they go. The matcher is left as it was.

    A text that is no single token is tried as the tokens that spell it; one that none spell counts as illegal.
    """
    row = np.zeros(vocabulary.words, np.int32)
    matcher.fill(row)
    allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    tokens = {spelling for token in allowed if (spelling := vocabulary.token_bytes[token]) is not None}
    first = {spelling[0] for spelling in tokens}
    legal: set[bytes] = set()
    refused = b""
    # In this order all texts that begin with a refused one come right behind it.
    for text in sorted(set(texts)):
        if text in tokens:
            legal.add(text)
        elif text[0] in first and not (refused and text.startswith(refused)):
            spelled = vocabulary.spell(text)
            if spelled is None:
                continue
            taken = 0
            while taken < len(spelled) and matcher.advance(spelled[taken]):
                taken += 1
            matcher.rollback(taken)
            if taken == len(spelled):
                legal.add(text)
            else:
                refused = vocabulary.text(spelled[: taken + 1])
    return legal
