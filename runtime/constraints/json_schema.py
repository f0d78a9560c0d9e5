"""JSON Schemas made ready for llguidance: read into their normal form, lowered to a grammar, refused in our words.

llguidance 1.9 ignores what it does not know, reads numbers as doubles, takes `"\\u0061"` for another key than `"a"`,
counts a key that comes twice as two, and reads classes in patterns as Unicode. None of that gets through here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import llguidance

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.document import too_deep
from palmette.runtime.constraints.schema.loosen import Loose, loosen
from palmette.runtime.constraints.schema.lower import Lowered, lower, lower_again
from palmette.runtime.constraints.schema.lower_lark import lark_form
from palmette.runtime.constraints.schema.shapes import Normal, Objects

# llguidance's time for an object grows with the square of its members: 0.7 s for 3,000.
_MOST_PAIRS = 30_000_000
_MOST_PARTS = 200  # that are tried one by one to find what llguidance does not take


def ways(normal: Normal, *, whitespace: bool) -> Iterator[Lowered]:
    """Grammars of it, the one to be tried first first: llguidance takes some in one form only."""
    _check_size(normal)
    try:
        yield lower(normal, whitespace=whitespace)
        yield lower_again(normal, whitespace=whitespace)
    except RecursionError:
        raise too_deep() from None


def _check_size(normal: Normal) -> None:
    """ConstraintError for what would keep llguidance, which nobody can stop, longer than a compilation may take."""
    pairs = 0
    for node, shapes in enumerate(normal.nodes):
        pairs += sum(len(shape.members) ** 2 for shape in shapes if isinstance(shape, Objects))
        if pairs > _MOST_PAIRS:
            raise ConstraintError(
                "the schema lists too many properties",
                pointer=normal.pointers[node][0] if node < len(normal.pointers) and normal.pointers[node] else "",
                hint=f"list up to {int(_MOST_PAIRS**0.5):,} in one object, fewer where there are more such objects",
            )


def validate(normal: Normal, *, whitespace: bool) -> None:
    """ConstraintError when llguidance takes it in no way."""
    message = ""
    for lowered in ways(normal, whitespace=whitespace):
        wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(lowered.grammar)
        if not wrong:
            return
        message = messages[0]
    raise refusal(normal, message)


def unwatched(text: str, normal: Normal, loose: Loose) -> ConstraintError:
    """For what neither a grammar nor the monitor can see to."""
    pointers = normal.pointers[loose.node] if loose.node < len(normal.pointers) else ()
    document = json.loads(text)
    keyword = loose.keyword.removeprefix("not ")
    where = [f"{p}/{keyword}" for p in pointers if keyword in _look_up(document, p)]
    return ConstraintError(
        f"{loose.keyword} cannot be enforced here",
        pointer=[*where, *pointers, ""][0],
        hint="leave it out and check afterwards, or simplify what it speaks of",
    )


def _look_up(document: Any, pointer: str) -> dict[str, Any]:
    """The subschema at a pointer; empty where it is in another document."""
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def refusal(normal: Normal, message: str) -> ConstraintError:
    """llguidance's refusal in our words, with the pointer of the last part that it refuses by itself: parts stand
    behind what they are parts of."""
    first = message.strip().split("\n")[0]
    pointer = ""
    normal, _ = loosen(normal)
    for node in range(len(normal.nodes) - 1, max(1, len(normal.nodes) - _MOST_PARTS), -1):
        pointers = normal.pointers[node] if node < len(normal.pointers) else ()
        if not pointers:
            continue
        wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
            lark_form(replace(normal, root=node), whitespace=False)
        )
        if wrong and messages[0].strip().split("\n")[0] == first:
            pointer = pointers[0]
            break
    return ConstraintError(
        f"the schema cannot be enforced: {first}", pointer=pointer, hint="shorten its counts and lists, or simplify it"
    )
