"""Whether a text is one that a constraint allows: `pt.testing.accepts`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from palmette.runtime.constraints.compile import ConstraintCompiler
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint


def accepts(
    text: str | bytes,
    *,
    json_schema: Mapping[str, Any] | bool | str | None = None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    tokenizer: Any = None,
) -> bool:
    """Whether some path of tokens spells `text` and is complete under the constraint, of which exactly one is given.

    tokenizer: an object with a `vocabulary`, such as an engine's `tokenizer`; without one, the single bytes.
    TypeError unless exactly one constraint is given; ConstraintError when it is refused.
    """
    given = {
        kind: spec
        for kind, spec in (("json_schema", json_schema), ("regex", regex), ("choices", choices), ("grammar", grammar))
        if spec is not None
    }
    if len(given) != 1:
        raise TypeError(
            "accepts() takes exactly one of json_schema, regex, choices and grammar, not "
            + (" and ".join(given) or "none")
        )
    [(kind, spec)] = given.items()
    if kind == "json_schema" and not isinstance(spec, str):
        spec = json.dumps(spec)
    if kind == "choices" and not isinstance(spec, str):
        spec = tuple(spec)  # type: ignore[arg-type]
    vocabulary = Vocabulary.of_bytes() if tokenizer is None else tokenizer.vocabulary
    compiled = ConstraintCompiler(vocabulary).compile(Constraint(kind, spec))  # type: ignore[arg-type]
    return compiled.accepts(text.encode() if isinstance(text, str) else text)
