"""How a generation samples, as far as the user said: None means that the next layer decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palmette.arguments import SAMPLING, check_best_of, check_order, flag


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of one `gen`, or the defaults of one `run`. What is None comes from the run, else from the
    runtime's own defaults (128 tokens, temperature 1, nothing cut off)."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    best_of: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    token_healing: bool | None = None
    pressure: bool | None = None

    def over(self, defaults: Sampling) -> dict[str, Any]:
        """The settings that are given here or, failing that, in `defaults`, by name."""
        merged: dict[str, Any] = {}
        for name in FIELDS:
            value = getattr(self, name)
            if value is None:
                value = getattr(defaults, name)
            if value is not None:
                merged[name] = value
        return merged


FIELDS: tuple[str, ...] = tuple(Sampling.__dataclass_fields__)
# SGLang's spellings, understood wherever sampling settings are taken.
ALIASES = ("max_new_tokens", "return_logprob", "top_logprobs_num")


def sampling(where: str, given: Mapping[str, Any]) -> Sampling:
    """Checks the settings in `given` (names of FIELDS and ALIASES; None counts as absent).

    Raises TypeError or ArgumentError that begins with `where`.
    """
    values = {name: value for name, value in given.items() if value is not None}
    _translate(where, values)
    checked = Sampling(**{name: SAMPLING[name](where, name, value) for name, value in values.items()})
    if checked.max_tokens is not None:
        check_order(where, checked.min_tokens or 0, checked.max_tokens)
    if checked.best_of is not None:
        check_best_of(where, checked.n or 1, checked.best_of)
    return checked


def _translate(where: str, values: dict[str, Any]) -> None:
    if "max_new_tokens" in values:
        if "max_tokens" in values:
            raise TypeError(f"{where}: max_tokens= and max_new_tokens= are one thing; give one of them")
        values["max_tokens"] = values.pop("max_new_tokens")
    wanted = values.pop("return_logprob", None)
    if wanted is not None:
        flag(where, "return_logprob", wanted)
    top = values.pop("top_logprobs_num", None)
    if wanted is None and top is None:
        return
    if "logprobs" in values:
        raise TypeError(f"{where}: logprobs= says what return_logprob= and top_logprobs_num= say; give one of them")
    if wanted is False:
        if top:
            raise TypeError(f"{where}: return_logprob=False contradicts top_logprobs_num={top}")
        return
    values["logprobs"] = top or 0
