"""Checks of what users pass in, for the language and the engine alike: each raises at once, with a hint.

Like `palmette.errors` a common floor: imports nothing else of ours.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from palmette.errors import ArgumentError, ConstraintError, suggestion


def unknown_keyword(where: str, name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that `where` does not know."""
    return TypeError(f"{where} has no keyword {name!r}; {suggestion(name, known)}")


def integer(where: str, name: str, value: object, *, least: int) -> int:
    """`value` as an int not below `least`. TypeError for another type (bool too), ArgumentError for a smaller one."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{where}: {name}= takes an int, not {value!r}")
    if value < least:
        raise ArgumentError(f"{where}: {name}={value} is out of range", hint=f"{name} is at least {least}")
    return int(value)


# More samples of one request than anybody asks for, and fewer than what would keep others waiting.
_MOST_SAMPLES = 1024


def _samples(where: str, name: str, value: object) -> int:
    count = integer(where, name, value, least=1)
    if count > _MOST_SAMPLES:
        raise ArgumentError(
            f"{where}: {name}={count} is out of range", hint=f"{name} is at most {_MOST_SAMPLES}; send several requests"
        )
    return count


def number(
    where: str, name: str, value: object, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> float:
    """`value` as a finite float in [low, high], or (low, high] with `open_low`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{where}: {name}= takes a number, not {value!r}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or result < low or result > high or (open_low and result == low):
        opening = "above" if open_low else "at least"
        top = "" if high == math.inf else f" and at most {high:g}"
        hint = f"{name} is {opening} {low:g}{top}" if low > -math.inf else f"{name} is a finite number"
        raise ArgumentError(f"{where}: {name}={value} is out of range", hint=hint)
    return result


def flag(where: str, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{where}: {name}= takes True or False, not {value!r}")
    return value


def strings(where: str, name: str, value: object) -> tuple[str, ...]:
    """One string, or an iterable of them, as a tuple."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, bytes | dict):
        items = tuple(value)
        if all(isinstance(item, str) for item in items):
            return items
    raise TypeError(f"{where}: {name}= takes a str or a list of str, not {value!r}")


def is_text(value: str) -> bool:
    """Whether UTF-8 can hold it: a half of a surrogate pair is no character."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _at_least(least: int) -> Callable[[str, str, object], int]:
    return lambda where, name, value: integer(where, name, value, least=least)


def _between(low: float, high: float, open_low: bool = False) -> Callable[[str, str, object], float]:
    return lambda where, name, value: number(where, name, value, low=low, high=high, open_low=open_low)


def _stop(where: str, name: str, value: object) -> tuple[str, ...]:
    stops = strings(where, name, value)
    if "" in stops:
        raise ArgumentError(
            f"{where}: {name}= holds an empty string", hint="an empty stop would end every text at once"
        )
    for stop in stops:
        if not is_text(stop):
            raise ArgumentError(
                f"{where}: {name}= holds {stop!r}, half of a surrogate pair", hint="give the whole character"
            )
    return stops


def pattern(text: str) -> re.Pattern[str]:
    """A regex as constraints and stops read it: in ASCII, unless it says `(?u)`. ConstraintError for what is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of set operations to come; `[a-z--x]` is literal as yet
        try:
            try:
                return re.compile(text, re.ASCII)
            except ValueError as error:
                if "incompatible" not in str(error):
                    raise
                return re.compile(text)
        except re.error as error:
            at = error.pos if error.pos is not None else 0
            raise ConstraintError(
                f"not a valid regex: {error.msg}",
                pointer=f"@{at}",
                hint=r"\p{...} is not part of Python's re: give the ranges, as in [\u0370-\u03ff]"
                if text[at : at + 2] in (r"\p", r"\P")
                else "the syntax is that of Python's re module",
            ) from error
        except (OverflowError, RecursionError, ValueError) as error:
            raise ConstraintError(
                f"not a usable regex: {error}", hint="the syntax is that of Python's re module"
            ) from error


# What speaks of the text around a match, in a pattern that is valid; escapes, classes and comments are passed over.
_AROUND = re.compile(
    r"(?P<found>\\[AZbB]|\\[1-9](?![0-7]{2})|\(\?(?:<?[=!]|P=|\()|[\^$])"
    r"|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?#[^)]*\)",
    re.DOTALL,
)
_VERBOSE = re.compile(r"\(\?[aiLmsu]*x")


def _stop_regex(where: str, name: str, value: object) -> tuple[str, ...]:
    """What can be told of stop patterns without an engine, which reads them in full."""
    stops = _stop(where, name, value)
    for stop in stops:
        try:
            empty = pattern(stop).match("") is not None
        except ConstraintError as error:
            message = f"{where}: {name} {stop!r}: {error.message}"
            raise ConstraintError(message, pointer=error.pointer, hint=error.hint) from error
        around = next((match for match in _AROUND.finditer(stop) if match["found"]), None)
        if around is not None and not _VERBOSE.search(stop):
            raise ConstraintError(
                f"{where}: {name} {stop!r}: an anchor, look-around, word boundary or back-reference has no meaning in "
                "a text that is still being written",
                pointer=f"@{around.start()}",
                hint="leave it out, or say what stands there as a part of the pattern",
            )
        if empty:
            raise ConstraintError(
                f"{where}: {name} {stop!r} matches the empty text, which would end every text at once",
                pointer="@0",
                hint="write it so that it needs at least one character, for instance with + instead of *",
            )
    return stops


def _token_ids(where: str, name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise TypeError(f"{where}: {name}= takes a list of token ids, not {value!r}")
    return tuple(integer(where, name, item, least=0) for item in value)


def _top_k(where: str, name: str, value: object) -> int:
    k = integer(where, name, value, least=-1)
    if k == 0:
        raise ArgumentError(f"{where}: top_k=0 leaves no token", hint="top_k is at least 1, or -1 to switch it off")
    return k


def _logit_bias(where: str, name: str, value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where}: {name}= takes a dict of token id to bias, not {value!r}")
    return tuple((integer(where, name, key, least=0), number(where, name, bias)) for key, bias in value.items())


def unsupported(where: str, value: object, retries: object) -> tuple[Any, int]:
    """on_unsupported= and retries= of a JSON schema; None for the default number of retries."""
    known = ("refuse", "validate")
    if not isinstance(value, str):
        raise TypeError(f"{where}: on_unsupported= takes a str, not {value!r}")
    if value not in known:
        raise ArgumentError(f"{where}: on_unsupported={value!r} is unknown", hint=suggestion(value, known))
    if retries is None:
        return value, 3
    if value != "validate":
        raise ArgumentError(f"{where}: retries= has no effect by itself", hint='it is for on_unsupported="validate"')
    return value, integer(where, "retries", retries, least=0)


SAMPLING: dict[str, Callable[[str, str, object], Any]] = {
    "max_tokens": _at_least(0),
    "min_tokens": _at_least(0),
    "n": _samples,
    "stop": _stop,
    "stop_token_ids": _token_ids,
    "stop_regex": _stop_regex,
    "temperature": _between(0, float("inf")),
    "top_p": _between(0, 1, open_low=True),
    "top_k": _top_k,
    "min_p": _between(0, 1),
    "frequency_penalty": number,
    "presence_penalty": number,
    "repetition_penalty": _between(0, float("inf"), open_low=True),
    "logit_bias": _logit_bias,
    "seed": lambda where, name, value: integer(where, name, value, least=-(2**63)),
    "ignore_eos": flag,
    "logprobs": _at_least(0),
    "best_of": _samples,
    "echo": flag,
    "prompt_logprobs": _at_least(0),
    "logprobs_start": _at_least(0),
    "logprob_token_ids": _token_ids,
    "token_healing": flag,
    "pressure": flag,
}
"""Sampling settings by name: the function (where, name, value) that checks a value and gives it in its plain form."""


def check_best_of(where: str, n: int, best_of: int) -> None:
    if best_of < n:
        raise ArgumentError(
            f"{where}: best_of={best_of} is below n={n}",
            hint="best_of samples are drawn and the best n of them kept: raise best_of or lower n",
        )


def check_order(where: str, min_tokens: int, max_tokens: int) -> None:
    if min_tokens > max_tokens:
        raise ArgumentError(
            f"{where}: min_tokens={min_tokens} is above max_tokens={max_tokens}",
            hint="lower min_tokens or raise max_tokens",
        )
