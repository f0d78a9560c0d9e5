"""Forced text as tokens, without distorting what the model would have written (CONSTRAINTS.md §4.7).

A constraint forces bytes; a model that writes freely would have written them in its tokenizer's own tokens, and the
last of these may reach beyond the forced text. So the bytes are tokenised after the text of the last few tokens, and
of the result only that part is kept that no token crossing the end of the forced text could replace.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence

from palmette.runtime.constraints.matcher import Matcher
from palmette.runtime.constraints.vocabulary import Vocabulary

# How many of the last tokens a matcher is told of, of which it looks at some.
CONTEXT = 16
_RECENT = 8  # tokens of context; pre-tokenizers look back over one word, and a word is rarely longer


def forced_run(matcher: Matcher, recent: Sequence[int], ends: Container[int]) -> Iterator[int]:
    """The tokens that a constraint leaves no choice about behind `recent`; each has been taken by the matcher when it
    is given."""
    recent = list(recent)
    while tokens := matcher.forced(recent[-CONTEXT:]):
        for token in tokens:
            # What ends a text may not come inside it: whether the text can be spelled without, the mask tells.
            if token in ends or not matcher.advance(token):
                return
            recent.append(token)
            yield token


def _whole_characters(text: bytes) -> int:
    """Length of the longest prefix of `text` that does not end inside a UTF-8 character."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if back < need else len(text)
        if byte < 0x80:
            break
    return len(text)


def context(vocabulary: Vocabulary, recent: Sequence[int]) -> list[int]:
    """The last few ordinary tokens of `recent` that begin at a character boundary; a control token cuts them off."""
    kept: list[int] = []
    for token in reversed(recent[-_RECENT:]):
        if vocabulary.token_bytes[token] is None:
            break
        kept.insert(0, token)
    while kept and (first := vocabulary.token_bytes[kept[0]]) and 0x80 <= first[0] < 0xC0:
        del kept[0]
    return kept


def encode_after(vocabulary: Vocabulary, recent: Sequence[int], text: bytes) -> list[int]:
    """The tokens of the whole characters of `text` as the tokenizer writes them after `recent`; [] where it has no
    encoder or does not spell the text as it stands.

    Where the tokenizer would have written `recent` itself in other tokens, now that `text` is known to follow (a quote
    alone, though `","` is one token), what was written stays: as much of its end is taken as context as the tokenizer
    writes the same way, at the least none.
    """
    if vocabulary.encode is None:
        return []
    text = text[: _whole_characters(text)]
    before = context(vocabulary, recent)
    if not text or _whole_characters(vocabulary.text(before)) != len(vocabulary.text(before)):
        return []
    while True:
        tokens = vocabulary.encode(vocabulary.text(before) + text)
        if tokens[: len(before)] == before:
            break
        before = context(vocabulary, before[1:])
    tokens = tokens[len(before) :]
    # A tokenizer that normalises text, or puts a blank in front, does not spell what is forced.
    return tokens if vocabulary.text(tokens) == text else []


def canonical(
    vocabulary: Vocabulary, recent: Sequence[int], text: bytes, crosses: Callable[[int], bool], *, final: bool = False
) -> list[int]:
    """Tokens of the forced `text`, as far as they are certain.

    crosses: given a node of the vocabulary's trie that some tail of `text` leads to, whether a token below it can
    follow under the constraint. final: nothing but the end can come after `text`, so that nothing crosses its end.
    """
    tokens = encode_after(vocabulary, recent, text)
    if not tokens or final:
        return tokens if final and vocabulary.text(tokens) == text else [] if final else tokens
    certain = len(text)
    for at in range(max(0, len(text) - vocabulary.longest + 1), len(text)):
        node = vocabulary.trie.find(text[at:])
        if node >= 0 and crosses(node):
            certain = at
            break
    kept, spelled = [], 0
    for token in tokens:
        spelled += len(vocabulary.token_bytes[token] or b"")
        if spelled > certain:
            break
        kept.append(token)
    return kept
