"""Every keyword of JSON Schema drafts 4 to 2020-12: what its value must be, who knows it, and what becomes of it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

ENFORCED, REWRITTEN, ANNOTATION = "enforced", "rewritten", "annotation"

# The draft of a document that names none: 2020-12, and what older ones alone had keeps its meaning.
UNSAID = 9999
DRAFTS = (4, 6, 7, 2019, 2020)


class Keyword(NamedTuple):
    """value: the kind of its value (document.py says what each is). first, last: the drafts that know it. becomes:
    `enforced` where the normal form has a place for it, `rewritten` into other shapes, `annotation`."""

    value: str
    becomes: str
    first: int = 4
    last: int = 2020


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _rows(value: str, becomes: str, names: str, first: int = 4, last: int = 2020) -> dict[str, Keyword]:
    return dict.fromkeys(names.split(), Keyword(value, becomes, first, last))


KEYWORDS: dict[str, Keyword] = {
    **_rows("type", ENFORCED, "type"),
    **_rows("values", ENFORCED, "enum"),
    **_rows("value", ENFORCED, "const", 6),
    **_rows("strings", ENFORCED, "required"),
    **_rows("count", ENFORCED, "minLength maxLength minItems maxItems minProperties maxProperties"),
    **_rows("count", ENFORCED, "minContains maxContains", 2019),
    **_rows("string", ENFORCED, "pattern format"),
    **_rows("number", ENFORCED, "minimum maximum"),
    **_rows("bound", ENFORCED, "exclusiveMinimum exclusiveMaximum"),
    **_rows("positive", ENFORCED, "multipleOf"),
    **_rows("boolean", ENFORCED, "uniqueItems"),
    **_rows("items", ENFORCED, "items"),
    **_rows("schemas", ENFORCED, "prefixItems", 2020),
    **_rows("schema", ENFORCED, "additionalItems", last=2019),
    **_rows("map", ENFORCED, "properties patternProperties"),
    **_rows("schema", ENFORCED, "additionalProperties"),
    **_rows("schema", ENFORCED, "contains", 6),
    **_rows("schema", REWRITTEN, "propertyNames", 6),
    **_rows("schemas", REWRITTEN, "allOf anyOf oneOf"),
    **_rows("schema", REWRITTEN, "not"),
    **_rows("schema", REWRITTEN, "if then else", 7),
    **_rows("dependencies", REWRITTEN, "dependencies", last=7),
    **_rows("needs", REWRITTEN, "dependentRequired", 2019),
    **_rows("map", REWRITTEN, "dependentSchemas", 2019),
    **_rows("schema", REWRITTEN, "unevaluatedProperties unevaluatedItems", 2019),
    **_rows("string", REWRITTEN, "$ref"),
    **_rows("string", REWRITTEN, "$dynamicRef", 2020),
    **_rows("string", REWRITTEN, "$recursiveRef", 2019, 2019),
    **_rows("string", ANNOTATION, "$schema"),
    **_rows("string", ANNOTATION, "$id", 6),
    **_rows("string", ANNOTATION, "id", last=4),
    **_rows("string", ANNOTATION, "$anchor", 2019),
    **_rows("string", ANNOTATION, "$dynamicAnchor", 2020),
    **_rows("boolean", ANNOTATION, "$recursiveAnchor", 2019, 2019),
    **_rows("any", ANNOTATION, "$vocabulary", 2019),
    **_rows("map", ANNOTATION, "definitions"),
    **_rows("map", ANNOTATION, "$defs", 2019),
    **_rows("string", ANNOTATION, "title description"),
    **_rows("string", ANNOTATION, "$comment contentMediaType contentEncoding", 7),
    **_rows("any", ANNOTATION, "default"),
    **_rows("any", ANNOTATION, "examples", 6),
    **_rows("any", ANNOTATION, "readOnly writeOnly", 7),
    **_rows("any", ANNOTATION, "deprecated contentSchema", 2019),
    # From here on they are not JSON Schema proper, but hyper-schema, OpenAPI, Snowplow and editors.
    **_rows(
        "any",
        ANNOTATION,
        "links base media readonly example discriminator externalDocs xml self markdownDescription enumNames "
        "enumDescriptions markdownEnumDescriptions errorMessage deprecationMessage defaultSnippets doNotSuggest "
        "suggestSortText allowComments allowTrailingCommas intellij tsType javaType propertyOrder format_description",
    ),
}

# Draft 3's, which later drafts do not know.
_GONE = {
    "divisibleBy": "use multipleOf (draft 4 and later)",
    "disallow": "use not (draft 4 and later)",
    "extends": "use allOf (draft 4 and later)",
}
# Where a keyword stands for something even in a draft that does not know it: it asserts nothing there, and nobody who
# wrote it meant an assertion.
_HARMLESS = frozenset(name for name, row in KEYWORDS.items() if row.becomes == ANNOTATION)
# "not" and "if" have too many neighbours that are words.
_MISSPELT = sorted(name for name in set(KEYWORDS) - _HARMLESS if len(name) >= 4)


def foreign(name: str, draft: int) -> bool:
    """Whether this draft gives the keyword no meaning."""
    row = KEYWORDS.get(name)
    return row is None or (draft != UNSAID and not row.first <= draft <= row.last)


@lru_cache(maxsize=4096)
def unknown(name: str) -> tuple[str, str] | None:
    """What is wrong with a key that is no keyword, and what to do; None where it is a note, as the drafts have it: when
    nobody can have meant a keyword by it."""
    if name.startswith(("x-", "_", "@")):
        return None
    if name in _GONE:
        return f"{name} cannot be enforced", _GONE[name]
    meant = [keyword for keyword in _MISSPELT if _alike(name, keyword)]
    return (f"unknown keyword {name!r}", f"did you mean {meant[0]!r}?") if meant else None


def _alike(name: str, keyword: str) -> bool:
    """Whether one is the other but for the case of letters and a slip (two in long words): a character too many, too
    few, another, or two that changed places (Damerau 1964)."""
    allowed = 2 if len(keyword) >= 9 else 1
    if abs(len(name) - len(keyword)) > allowed:
        return False
    a, b = name.lower(), keyword.lower()
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1] <= allowed


def misplaced(name: str, draft: int) -> tuple[str, str] | None:
    """What is wrong with a keyword of another draft than `draft`; None when it says nothing anyway."""
    row = KEYWORDS[name]
    if name in _HARMLESS or name == "additionalItems":
        return None
    said = {2019: "2019-09", 2020: "2020-12"}
    since = said.get(row.first, row.first) if draft < row.first else None
    hint = (
        f"say with $schema that the document is of draft {since} or later"
        if since
        else "use what has replaced it, or say with $schema which older draft the document is of"
    )
    return f"{name} is not a keyword of draft {said.get(draft, draft)}", hint
