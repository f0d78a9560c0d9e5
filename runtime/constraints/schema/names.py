"""Sets of strings split into classes that no two share."""

from __future__ import annotations

from collections.abc import Iterable

from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.shapes import ANY_TEXT, Text


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
        if (part := texts.intersect(so_far, fails)) is not None:
            found.append(part)
        so_far = texts.intersect(so_far, holds)
        if so_far is None:
            break
    return tuple(found)


def minus(pieces: Iterable[Text], text: Text) -> list[Text]:
    """The pieces without what is in `text`."""
    if text is ANY_TEXT:
        return []
    rest = outside(text)
    return [part for piece in pieces for other in rest if (part := texts.intersect(piece, other)) is not None]


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
