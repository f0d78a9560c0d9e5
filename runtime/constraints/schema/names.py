"""Sets of strings split into classes that no two share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from palmette.runtime.constraints.regex_syntax import Alt, Chars, Repeat, Seq
from palmette.runtime.constraints.regex_syntax import Node as Tree
from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.shapes import ANY_TEXT, Text

_TRIED = ("", "a", "zq", "0", "A_1", "-", "~ #\n", "\u00e9")
_LONGEST_TRIED = 1000


def meet(a: Text, b: Text) -> Text | None:
    """The strings of both; None when there are none, which is found out by an automaton where it must be."""
    if a is ANY_TEXT or a is b:
        return b
    if b is ANY_TEXT:
        return a
    found = texts.intersect(a, b)
    return None if found is None or is_empty(found) else found


def is_empty(text: Text) -> bool:
    """Whether there is no such string."""
    if text.only is not None:
        return not text.only
    if not text.all_of and not text.none_of and text.most is None:
        return False
    return _asked(text)


@lru_cache(maxsize=2000)
def _asked(text: Text) -> bool:
    # One string that is in it settles the matter without an automaton.
    tried = [s for language in text.all_of for branch in language.branches if (s := _sample(branch.body)) is not None]
    for s in (*tried, *_TRIED):
        longer = s + "a" * (text.least - len(s)) if len(s) < text.least <= _LONGEST_TRIED else s
        if any(texts.contains(text, t) for t in dict.fromkeys((s, longer))):
            return False
    return texts.empty(text)


def _sample(node: Tree) -> str | None:
    """One of the shortest texts, or None when there is none."""
    if isinstance(node, Chars):
        if not node.chars:
            return None
        return next((chr(max(lo, 97)) for lo, hi in node.chars if lo <= 122 and hi >= 97), chr(node.chars[0][0]))
    if isinstance(node, Seq):
        parts = [_sample(item) for item in node.items]
        return None if None in parts else "".join(parts)  # type: ignore[arg-type]
    if isinstance(node, Alt):
        return min((s for option in node.options if (s := _sample(option)) is not None), key=len, default=None)
    assert isinstance(node, Repeat)
    if not node.least:
        return ""
    part = _sample(node.body)
    return None if part is None or len(part) * node.least > _LONGEST_TRIED else part * node.least


def outside(text: Text) -> tuple[Text, ...]:
    """All strings that are not in `text`, as classes that no two share."""
    if text.only is not None:
        return (Text(without=text.only),) if text.only else (ANY_TEXT,)
    asked: list[tuple[Text, Text]] = [(Text(all_of=(x,)), Text(none_of=(x,))) for x in text.all_of]
    asked += [(Text(none_of=(x,)), Text(all_of=(x,))) for x in text.none_of]
    if text.least:
        asked.append((Text(least=text.least), Text(most=text.least - 1)))
    if text.most is not None:
        asked.append((Text(most=text.most), Text(least=text.most + 1)))
    if text.without:
        asked.append((Text(without=text.without), Text(only=text.without)))
    found: list[Text] = []
    so_far: Text | None = ANY_TEXT
    for holds, fails in asked:
        assert so_far is not None
        if (part := meet(so_far, fails)) is not None:
            found.append(part)
        so_far = meet(so_far, holds)
        if so_far is None:
            break
    return tuple(found)


def minus(pieces: Iterable[Text], text: Text) -> list[Text]:
    """The pieces without what is in `text`."""
    if text is ANY_TEXT:
        return []
    rest = outside(text)
    return [part for piece in pieces for other in rest if (part := meet(piece, other)) is not None]


def classes(found: Iterable[Text]) -> list[Text]:
    """The union of texts as classes that no two share."""
    out: list[Text] = []
    seen: list[Text] = []
    for text in found:
        pieces = [text]
        for before in seen:
            pieces = minus(pieces, before)
        out += pieces
        seen.append(text)
    return out
