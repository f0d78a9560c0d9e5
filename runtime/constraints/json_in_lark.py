"""The %json blocks of a grammar, which llguidance would read by itself, go the way of all JSON Schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from palmette.errors import ConstraintError
from palmette.runtime.constraints.schema.loosen import loosen
from palmette.runtime.constraints.schema.lower_json import json_document
from palmette.runtime.constraints.schema.lower_lark import lark_text
from palmette.runtime.constraints.schema.shapes import Normal

# Strings, regexes and comments, in which %json is text; then %json itself.
_TOKENS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|#[^\n]*|/(?:[^/\\\n]|\\.)+/|(%json\b)\s*')


class _Block(NamedTuple):
    """%json and its schema: from `start` to before `end` of the grammar's text."""

    start: int
    end: int
    schema: str


def with_schemas_lowered(text: str, read: Callable[[str], Normal], *, whitespace: bool) -> str:
    """The grammar with each block replaced by one that says just what its schema does, or by rules that do.

    ConstraintError, with the block's position, where a schema is refused or no grammar says all of it.
    """
    out, at, rules = [], 0, []
    for i, block in enumerate(_blocks(text)):
        try:
            written, rule = _lowered(block.schema, read, whitespace, f"json{i}_", "%ignore" in text)
        except ConstraintError as error:
            where = f" (at {error.pointer} of the schema)" if error.pointer else ""
            raise ConstraintError(
                f"%json: {error.message}{where}", pointer=f"@{block.start}", hint=error.hint
            ) from error
        out += [text[at : block.start], written]
        rules.append(rule)
        at = block.end
    return "".join([*out, text[at:], "\n" * any(rules), *rules])


def _blocks(text: str) -> Iterator[_Block]:
    at = 0
    decoder = json.JSONDecoder()
    while found := _TOKENS.search(text, at):
        at = found.end()
        if found[1]:
            try:
                _, at = decoder.raw_decode(text, at)
            except (json.JSONDecodeError, RecursionError) as error:
                raise ConstraintError(
                    f"%json: the schema is not JSON: {error}", pointer=f"@{found.start()}", hint="give it as JSON"
                ) from error
            yield _Block(found.start(), at, text[found.end() : at])


def _lowered(
    schema: str, read: Callable[[str], Normal], whitespace: bool, prefix: str, ignores: bool
) -> tuple[str, str]:
    whole = read(schema)
    normal, loose = loosen(whole)
    if loose:
        pointers = whole.pointers[loose[0].node] if loose[0].node < len(whole.pointers) else ()
        raise ConstraintError(
            f"{loose[0].keyword} cannot be enforced inside a grammar",
            pointer=pointers[0] if pointers else "",
            hint="leave it out, or use the schema as a constraint of its own",
        )
    whitespace = _asks_for_whitespace(schema, whitespace)
    document = json_document(normal, whitespace=whitespace)
    if document is not None:
        # As many lines as before, so that llguidance's positions behind it stay right.
        return "%json {" + "\n" * schema.count("\n") + json.dumps(document)[1:], ""
    if ignores:
        raise ConstraintError(
            "this schema cannot be enforced beside %ignore", hint="leave out %ignore, or simplify the schema"
        )
    return f"{prefix}start", lark_text(normal, whitespace=whitespace, prefix=prefix, start=f"{prefix}start")


def _asks_for_whitespace(schema: str, default: bool) -> bool:
    """llguidance's own option is heeded, as far as it speaks of white space."""
    document: Any = json.loads(schema)
    options = document.get("x-guidance") if isinstance(document, dict) else None
    return bool(options.get("whitespace_flexible", default)) if isinstance(options, dict) else default
