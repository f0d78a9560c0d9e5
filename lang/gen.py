"""`gen` and `select`: checked at the call, so that a wrong argument is an error where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from palmette.arguments import flag, integer, is_text, number, strings, unknown_keyword, unsupported
from palmette.errors import ConstraintError, suggestion
from palmette.lang.nodes import SELECT_METHODS, Gen, Select, SelectMethod, Spec
from palmette.lang.sampling import ALIASES, FIELDS, sampling
from palmette.lang.types import OutputType, json_value, output_type

_CONSTRAINTS = ("regex", "choices", "json_schema", "grammar", "structural_tag", "type")
_KEYWORDS = (*FIELDS, *ALIASES, *_CONSTRAINTS, "dtype", "choices_method", "whitespace", "on_unsupported", "retries")
# What an engine does of these, a program has in another way.
_ENGINES_OWN = {
    "echo": "a state's text has the prompt already: state.text()",
    "prompt_logprobs": "use engine.generate(state.tokens(), max_tokens=0, prompt_logprobs=0)",
    "logprobs_start": "use engine.generate(state.tokens(), max_tokens=0, prompt_logprobs=0, logprobs_start=...)",
}


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    min_tokens: int | None = None,
    n: int | None = None,
    best_of: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    ignore_eos: bool | None = None,
    logprobs: int | None = None,
    logprob_token_ids: Iterable[int] | None = None,
    regex: str | None = None,
    choices: Iterable[str] | None = None,
    json_schema: Mapping[str, Any] | str | bool | None = None,
    grammar: str | None = None,
    structural_tag: Mapping[str, Any] | str | None = None,
    type: Any = None,
    whitespace: bool = False,
    on_unsupported: Literal["refuse", "validate"] = "refuse",
    retries: int | None = None,
    token_healing: bool | None = None,
    pressure: bool | None = None,
    **sglang: Any,
) -> Gen | Select:
    """Text that the model makes, kept as variable `name`.

    A setting left at None is the run's (`program.run(..., temperature=0)`), else the default: 128 tokens, temperature
    1.0, one sample. The text ends before the first of `stop` that it would hold, or of what `stop_regex` matches.
    `n` above 1 makes the variable a list; the transcript goes on with its first. `best_of` draws so many samples and
    keeps the n with the highest mean log-probability per token, best first. `logprobs=k` keeps the log-probability of
    each token and the k best others, and those of `logprob_token_ids` beside. `token_healing` spells the end of the
    text before anew with what follows, where a token could reach from one into the other. `pressure` tells of each
    token how much probability the constraint removed: `state.result(name).pressure`.

    At most one of `regex`, `choices`, `json_schema`, `grammar`, `structural_tag`, `type` says what the text must be;
    every other argument holds beside it. `structural_tag` binds parts of a free text to schemas (tool calls). `type`
    also parses: `state.value(name)`. `whitespace` lets JSON hold optional white space. A schema that cannot be enforced
    exactly is refused; with `on_unsupported="validate"` what cannot be enforced is left out, the text checked against
    the whole schema when it is there, and drawn again with another seed where it is not valid, at most `retries` times
    (3).

    SGLang's `dtype`, `return_logprob`, `top_logprobs_num`, `max_new_tokens` and `choices_method` are understood; the
    last makes it a `select`. Raises TypeError, ArgumentError or ConstraintError at once.
    """
    where = f"gen({name!r})" if name is not None else "gen()"
    for keyword in sglang:
        if keyword in _ENGINES_OWN:
            raise TypeError(f"{where} has no keyword {keyword!r}; {_ENGINES_OWN[keyword]}")
        if keyword not in (*ALIASES, "dtype", "choices_method"):
            raise unknown_keyword(where, keyword, _KEYWORDS)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"gen takes the variable's name first, not {name!r}")
    dtype = sglang.pop("dtype", None)
    if dtype is not None:
        if type is not None:
            raise TypeError(f"{where}: type= and dtype= are one thing; give one of them")
        type = dtype
    method = sglang.pop("choices_method", None)
    settings = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "n": n,
        "best_of": best_of,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
        "logit_bias": logit_bias,
        "seed": seed,
        "ignore_eos": ignore_eos,
        "logprobs": logprobs,
        "logprob_token_ids": logprob_token_ids,
        "token_healing": token_healing,
        "pressure": pressure,
        **sglang,
    }
    given = dict(zip(_CONSTRAINTS, (regex, choices, json_schema, grammar, structural_tag, type), strict=True))
    names = [key for key, value in given.items() if value is not None]
    if len(names) > 1:
        both = " and ".join(f"{key}=" for key in names)
        raise TypeError(f"{where}: {both} each say what the whole text must be; give one of them")
    if method is not None:
        return _select_of_gen(where, name, choices, method, settings)
    kind = names[0] if names else None
    typed = output_type(type) if kind == "type" else None
    spec = _spec(where, kind, given[kind], typed, flag(where, "whitespace", whitespace)) if kind else None
    if whitespace and (spec is None or spec.kind != "json_schema"):
        raise TypeError(f"{where}: whitespace= is for JSON; give json_schema= or a type= that is written as JSON")
    mode, count = unsupported(where, on_unsupported, retries)
    if mode != "refuse":
        if spec is None or spec.kind != "json_schema":
            raise TypeError(f"{where}: on_unsupported= is for json_schema= and a type= that is written as JSON")
        spec = replace(spec, on_unsupported=mode, retries=count)
    return Gen(name, sampling(where, settings), spec, typed)


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    *,
    method: SelectMethod | None = None,
    temperature: float = 0.0,
    seed: int | None = None,
    choices_method: SelectMethod | None = None,
    **unknown: Any,
) -> Select:
    """The choice that the model finds likeliest after the text so far, kept as variable `name`.

    `method`: "probability" (default: of the choice as text), "token_length_normalized", "greedy_token_selection",
    "unconditional_likelihood_normalized". `temperature` above 0 draws from the distribution instead.
    `state.result(name)` has the probabilities and the share of all probability that the choices hold.
    """
    where = f"select({name!r})" if name is not None else "select()"
    for keyword in unknown:
        raise unknown_keyword(where, keyword, ("choices", "method", "temperature", "seed", "choices_method"))
    if name is not None and not isinstance(name, str):
        raise TypeError(f"select takes the variable's name first, then the choices, not {name!r}")
    if choices is None:
        raise TypeError(f"{where} needs choices, a list of str")
    if method is not None and choices_method is not None:
        raise TypeError(f"{where}: method= and choices_method= are one thing; give one of them")
    chosen = method if method is not None else choices_method
    if chosen is None:
        chosen = "probability"
    if chosen not in SELECT_METHODS:
        raise TypeError(f"{where}: method={chosen!r} is unknown; {suggestion(str(chosen), SELECT_METHODS)}")
    options = _options(where, choices)
    if len(set(options)) < len(options):
        twice = max(options, key=options.count)
        raise ConstraintError(f"{where}: the choice {twice!r} occurs twice", hint="give each choice once")
    heat = number(where, "temperature", temperature, low=0)
    number_seed = None if seed is None else integer(where, "seed", seed, least=-(2**63))
    return Select(name, options, chosen, heat, number_seed)


def _select_of_gen(where: str, name: str | None, choices: Any, method: Any, settings: dict[str, Any]) -> Select:
    if choices is None:
        raise TypeError(f"{where}: choices_method= needs choices=")
    asked = {key: value for key, value in settings.items() if value is not None}
    temperature, seed = asked.pop("temperature", 0.0), asked.pop("seed", None)
    if asked:
        extra = ", ".join(f"{key}=" for key in asked)
        raise TypeError(f"{where}: choices_method= scores the choices, which leaves {extra} without effect; remove it")
    return select(name, choices, method=method, temperature=temperature, seed=seed)


def _options(where: str, choices: Any) -> tuple[str, ...]:
    if isinstance(choices, str):
        raise TypeError(f"{where}: choices= takes a list of str, not one str")
    options = strings(where, "choices", choices)
    if not options:
        raise ConstraintError(f"{where}: choices is empty", hint="give at least one choice")
    for option in options:
        if not is_text(option):
            raise ConstraintError(
                f"{where}: the choice {option!r} holds half of a surrogate pair", hint="give the whole character"
            )
    return options


def _spec(where: str, kind: str, value: Any, typed: OutputType | None, whitespace: bool) -> Spec | None:
    if typed is not None:
        return None if typed.kind is None else Spec(typed.kind, typed.spec, whitespace)
    if kind == "choices":
        return Spec("choices", tuple(dict.fromkeys(_options(where, value))))
    if kind == "json_schema":
        return Spec("json_schema", _json_text(where, kind, value), whitespace)
    if kind == "structural_tag":
        return Spec("structural_tag", _json_text(where, kind, value))
    if not isinstance(value, str):
        raise TypeError(f"{where}: {kind}= takes a str, not {value!r}")
    if kind == "regex":
        try:
            re.compile(value)
        except re.error as error:
            raise ConstraintError(
                f"{where}: the regex {value!r} is malformed: {error.msg}",
                pointer=f"@{error.pos or 0}",
                hint="patterns are written as for Python's re.fullmatch",
            ) from None
        return Spec("regex", value)
    if not value.strip():
        raise ConstraintError(f"{where}: the grammar is empty", hint="a grammar needs at least a rule named start")
    return Spec("grammar", value)


def _json_text(where: str, kind: str, value: Any) -> str:
    """A schema or structural tag as compact JSON text, keys in the order that they were written: that of a schema
    decides the order of the output."""
    if isinstance(value, str):
        try:
            value = json_value(value)
        except ValueError as error:
            raise ConstraintError(
                f"{where}: {kind}= is no JSON: {error}", hint="give a dict, or JSON text"
            ) from None
    if not isinstance(value, Mapping | bool):
        raise TypeError(f"{where}: {kind}= takes a dict or JSON text, not {value!r}; for a class use type=")
    try:
        plain = value if isinstance(value, bool) else dict(value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(
            f"{where}: {kind}= cannot be written as JSON: {error}", hint="plain data only"
        ) from None
