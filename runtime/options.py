"""Keywords of `generate` as plain data: checked, nothing ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from palmette.arguments import SAMPLING, check_order, strings, unknown_keyword
from palmette.errors import CapabilityError, ConstraintError
from palmette.runtime.protocol import Constraint, SamplingParams

CONSTRAINTS = ("regex", "choices", "json_schema", "grammar")
_FIELDS = tuple(field.name for field in fields(SamplingParams))
_LATER = ("token_healing", "stop_regex", "best_of")
# None is a value of its own for these, not "leave it at the default".
_OPTIONAL = ("max_tokens", "seed", "logprobs")


def sampling_params(base: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
    """`base` (or the defaults) with `options` put over it, checked. Constraint keywords are left to `constraint`."""
    if base is not None and not isinstance(base, SamplingParams):
        raise TypeError(f"generate(): params= takes SamplingParams, not {base!r}; or give its fields as keywords")
    for name in options:
        if name in _LATER:
            raise CapabilityError(f"the in-process engine has no {name} yet", hint=f"leave {name} out")
        if name not in _FIELDS and name not in CONSTRAINTS:
            raise unknown_keyword("generate()", name, [*_FIELDS, *CONSTRAINTS, "stream", "namespace"])
    given = {
        name: value for name, value in options.items() if name in _FIELDS and (value is not None or name in _OPTIONAL)
    }
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    return checked(replace(base or SamplingParams(), **given))


def checked(params: SamplingParams) -> SamplingParams:
    """The same parameters in their plain form. TypeError or ArgumentError for the first that makes no sense."""
    values = {name: getattr(params, name) for name in _FIELDS}
    plain = {
        name: value if value is None and name in _OPTIONAL else SAMPLING[name]("generate()", name, value)
        for name, value in values.items()
    }
    plain["logit_bias"] = dict(plain["logit_bias"])
    if params.max_tokens is not None:
        check_order("generate()", params.min_tokens, params.max_tokens)
    return SamplingParams(**plain)


def choices(where: str, value: object) -> tuple[str, ...]:
    """A list of options. One str is refused: it would be taken for the list of its characters, or for one option."""
    if isinstance(value, str):
        raise TypeError(f"{where}: choices= takes a list of str, not {value!r}")
    return strings(where, "choices", value)


def check_namespace(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"namespace= takes a str, not {value!r}; leave it out for the common one")


def constraint(options: Mapping[str, Any]) -> Constraint | None:
    """The constraint among the keywords; TypeError where there are two."""
    given = [name for name in CONSTRAINTS if options.get(name) is not None]
    if len(given) > 1:
        raise TypeError(f"{' and '.join(given)} exclude each other: give one constraint")
    if not given:
        return None
    kind, spec = given[0], options[given[0]]
    if kind == "choices":
        return Constraint("choices", choices("generate()", spec))
    if kind == "json_schema" and not isinstance(spec, str):
        try:
            return Constraint("json_schema", json.dumps(spec))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConstraintError(f"json_schema is no JSON: {error}", hint="give a dict or JSON text") from None
    if not isinstance(spec, str):
        raise TypeError(f"generate(): {kind}= takes a str, not {spec!r}")
    if kind == "json_schema":
        return Constraint("json_schema", spec)
    return Constraint("regex", spec) if kind == "regex" else Constraint("grammar", spec)
