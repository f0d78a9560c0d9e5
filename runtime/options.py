"""Keywords of `generate` as plain data: checked, nothing ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from palmette.arguments import SAMPLING, check_best_of, check_order, integer, strings, unknown_keyword, unsupported
from palmette.errors import ArgumentError, ConstraintError
from palmette.runtime.protocol import Constraint, ConstraintKind, GenerateRequest, SamplingParams, ScoreRequest

CONSTRAINTS: tuple[ConstraintKind, ...] = ("regex", "choices", "json_schema", "grammar", "structural_tag")
# Beside json_schema.
SCHEMA = ("on_unsupported", "retries")
# Keywords of a request that are neither sampling nor constraint.
ACCOUNT = ("namespace", "priority", "tenant")
_FIELDS = tuple(field.name for field in fields(SamplingParams))
# None is a value of its own for these, not "leave it at the default".
_OPTIONAL = ("max_tokens", "best_of", "seed", "logprobs", "prompt_logprobs")


def sampling_params(base: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
    """`base` (or the defaults) with `options` put over it, checked. Constraint keywords are left to `constraint`."""
    if base is not None and not isinstance(base, SamplingParams):
        raise TypeError(f"generate(): params= takes SamplingParams, not {base!r}; or give its fields as keywords")
    for name in options:
        if name not in _FIELDS and name not in CONSTRAINTS and name not in SCHEMA:
            raise unknown_keyword("generate()", name, [*_FIELDS, *CONSTRAINTS, *SCHEMA, "stream", *ACCOUNT])
    given = {
        name: value for name, value in options.items() if name in _FIELDS and (value is not None or name in _OPTIONAL)
    }
    for name in ("stop", "stop_regex"):
        if isinstance(given.get(name), str):
            given[name] = (given[name],)
    return checked(replace(base or SamplingParams(), **given))


def checked(params: SamplingParams) -> SamplingParams:
    """The same parameters in their plain form. TypeError or ArgumentError for the first that makes no sense."""
    values = {name: getattr(params, name) for name in _FIELDS}
    plain = {
        name: value if value is None and name in _OPTIONAL else SAMPLING[name]("generate()", name, value)
        for name, value in values.items()
    }
    plain["logit_bias"] = dict(plain["logit_bias"])
    result = SamplingParams(**plain)
    _check_together(result)
    return result


def _check_together(params: SamplingParams) -> None:
    """ArgumentError for settings that contradict each other, or that would have no effect."""
    if params.max_tokens is not None:
        check_order("generate()", params.min_tokens, params.max_tokens)
    if params.best_of is not None:
        check_best_of("generate()", params.n, params.best_of)
    if params.token_healing and params.prompt_logprobs is not None:
        raise ArgumentError(
            "generate(): prompt_logprobs= is of the prompt's own tokens, the last of which token_healing= may replace",
            hint="leave one of them out",
        )
    if params.logprobs_start and params.prompt_logprobs is None:
        raise ArgumentError(
            f"generate(): logprobs_start={params.logprobs_start} without prompt_logprobs= has no effect",
            hint="add prompt_logprobs=0, or leave logprobs_start out",
        )
    if params.logprob_token_ids and params.logprobs is None and params.prompt_logprobs is None:
        raise ArgumentError(
            "generate(): logprob_token_ids= has no effect by itself",
            hint="add logprobs=0 for the generated tokens, prompt_logprobs=0 for those of the prompt",
        )


def check_validated(request: GenerateRequest) -> None:
    """What goes with a text that is checked when it is there."""
    constraint = request.constraint
    if constraint is None or constraint.on_unsupported == "refuse":
        return
    unsupported("generate()", constraint.on_unsupported, constraint.retries)
    if constraint.kind != "json_schema":
        raise ArgumentError("generate(): on_unsupported= is for json_schema=", hint="leave it out")
    for name, given in (("stream=True", request.stream), ("echo=True", request.params.echo)):
        if given:
            raise ArgumentError(
                f'generate(): on_unsupported="validate" and {name} exclude each other: a text may be drawn again',
                hint="leave out one of them",
            )


def check_stream(params: SamplingParams, stream: bool) -> None:
    if stream and params.best_of is not None:
        raise ArgumentError(
            "generate(): best_of= and stream=True exclude each other: which sample is the best is known at the end",
            hint="leave out one of them",
        )


def choices(where: str, value: object) -> tuple[str, ...]:
    """A list of options. One str is refused: it would be taken for the list of its characters, or for one option."""
    if isinstance(value, str):
        raise TypeError(f"{where}: choices= takes a list of str, not {value!r}")
    return strings(where, "choices", value)


def check_account(request: GenerateRequest | ScoreRequest) -> None:
    """The fields that say on whose behalf a request runs and how soon."""
    for name in ("namespace", "tenant", "family"):
        value = getattr(request, name)
        if not isinstance(value, str):
            raise TypeError(f"{name}= takes a str, not {value!r}; leave it out for the common one")
    integer("generate()", "priority", request.priority, least=-(2**31))


def constraint(options: Mapping[str, Any]) -> Constraint | None:
    """The constraint among the keywords; TypeError where there are two."""
    given: list[ConstraintKind] = [name for name in CONSTRAINTS if options.get(name) is not None]
    if len(given) > 1:
        raise TypeError(f"{' and '.join(given)} exclude each other: give one constraint")
    on_unsupported, retries = options.get("on_unsupported"), options.get("retries")
    asked = on_unsupported is not None or retries is not None
    if asked and given != ["json_schema"]:
        raise TypeError("generate(): on_unsupported= and retries= are for json_schema=")
    if not given:
        return None
    kind: ConstraintKind = given[0]
    spec = options[kind]
    if kind == "choices":
        return Constraint("choices", choices("generate()", spec))
    if kind in ("json_schema", "structural_tag") and not isinstance(spec, str):
        try:
            spec = json.dumps(spec)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConstraintError(f"{kind} is no JSON: {error}", hint="give a dict or JSON text") from None
    if not isinstance(spec, str):
        raise TypeError(f"generate(): {kind}= takes a str, not {spec!r}")
    if asked:
        mode, count = unsupported("generate()", on_unsupported if on_unsupported is not None else "refuse", retries)
        return Constraint(kind, spec, on_unsupported=mode, retries=count)
    return Constraint(kind, spec)
