"""From logits to tokens: bias, penalties, masks, temperature, top-k, top-p, min-p, the draw, log-probabilities.

Vectorised over the batch; a feature that no row uses costs nothing. Random numbers are a counter-based function of
(seed, position), so that a request draws the same token whatever else runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from palmette.runtime.protocol import SamplingParams, TokenLogprob

_MASK64 = (1 << 64) - 1


def mix64(value: int) -> int:
    """A 64-bit hash of a counter (the finaliser of SplitMix64, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def sample_seed(seed: int, index: int) -> int:
    """The seed of sample `index` of a request with `seed`; sample 0 has the request's own."""
    return seed if index == 0 else mix64((seed & _MASK64) ^ mix64(index))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    return (mix64(mix64(seed & _MASK64) ^ mix64(position)) >> 11) * 2.0**-53


@dataclass(slots=True)
class Row:
    """What the sampler must know of the request behind one row of logits.

    position: of the token to be drawn. mask: int32 words, bit t & 31 of word t >> 5 set where token t is allowed, or
    None. banned: ids that may not be drawn now. counts: how often each generated token came; prompt: the prompt's
    distinct ids (for the repetition penalty); both only where a penalty is set.
    """

    params: SamplingParams
    seed: int
    position: int
    mask: np.ndarray | None = None
    banned: Iterable[int] = ()
    counts: Mapping[int, int] | None = None
    prompt: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """One row's outcome. token -1: no token is allowed."""

    token: int
    logprob: TokenLogprob | None


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[Drawn]:
    """Draw one token for each row of `logits` (float32 [R, V], overwritten)."""
    for index, row in enumerate(rows):
        _adjust(logits[index], row)
    best, token = logits.max(dim=-1)
    tokens = token.tolist()
    dead = torch.isneginf(best).tolist()
    random = [i for i, row in enumerate(rows) if row.params.temperature > 0 and not dead[i]]
    if random:
        chosen = logits[random] if len(random) < len(rows) else logits
        for i, drawn in zip(random, _draw(chosen, [rows[i] for i in random]), strict=True):
            tokens[i] = drawn
    wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None and not dead[i]]
    logprobs = dict(zip(wanted, _logprobs(logits, rows, wanted, tokens), strict=True)) if wanted else {}
    return [Drawn(-1 if dead[i] else tokens[i], logprobs.get(i)) for i in range(len(rows))]


def _adjust(logits: torch.Tensor, row: Row) -> None:
    """Penalties, bias, bans and the constraint's mask, in place on one row [V]."""
    params = row.params
    if row.counts is not None:
        _penalise(logits, row)
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), dtype=torch.long)
        bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float64)
        logits[ids] = _finite(logits[ids].double() + bias)
    if row.mask is not None:
        bits = np.unpackbits(row.mask.view(np.uint8), bitorder="little", count=logits.shape[0])
        np.copyto(logits.numpy(), -np.inf, where=bits == 0)
    banned = list(row.banned)
    if banned:
        logits[banned] = -torch.inf


def _penalise(logits: torch.Tensor, row: Row) -> None:
    """Frequency and presence penalties count generated tokens, as OpenAI defines them; the repetition penalty divides
    or multiplies the logits of prompt and generated tokens (Keskar et al. 2019, CTRL)."""
    params, counts = row.params, row.counts or {}
    if params.repetition_penalty != 1.0:
        seen = set(counts) | set(row.prompt.tolist() if row.prompt is not None else ())
        ids = torch.tensor(sorted(seen), dtype=torch.long)
        values = logits[ids].double()
        penalty = params.repetition_penalty
        logits[ids] = _finite(torch.where(values > 0, values / penalty, values * penalty))
    if counts and (params.frequency_penalty or params.presence_penalty):
        ids = torch.tensor(list(counts), dtype=torch.long)
        times = torch.tensor(list(counts.values()), dtype=torch.float64)
        penalties = params.frequency_penalty * times + params.presence_penalty
        logits[ids] = _finite(logits[ids].double() - penalties)


def _finite(logits: torch.Tensor) -> torch.Tensor:
    """float64 logits as float32, which may not overflow: two that are infinite leave no distribution."""
    limit = torch.finfo(torch.float32).max
    return logits.clamp(-limit, limit).float()


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """Temperature, top-k, top-p, min-p in that order, then the inverse of the cumulative distribution, in float64."""
    temperature = torch.tensor([[row.params.temperature] for row in rows], dtype=torch.float64)
    scaled = logits.double()
    scaled = (scaled - scaled.max(dim=-1, keepdim=True).values) / temperature
    weights = scaled.exp_()
    for index, row in enumerate(rows):
        if row.params.top_k > 0 or row.params.top_p < 1.0 or row.params.min_p > 0.0:
            _filter(weights[index], row.params)
    cumulative = weights.cumsum(dim=-1)
    points = torch.tensor([[uniform(row.seed, row.position)] for row in rows], dtype=torch.float64)
    total = cumulative[:, -1:].contiguous()
    # Below the total even where the product rounds up to it; right=True: the first sum above the point, so that a
    # token of weight 0 is never drawn.
    points = torch.minimum(points * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, points, right=True)[:, 0].tolist()


def _filter(weights: torch.Tensor, params: SamplingParams) -> None:
    """Zero the weights [V] (largest is 1.0) that top-k, top-p or min-p leave out.

    Of equal weights the lower id is kept.
    """
    size = weights.shape[0]
    keep = size if params.top_k <= 0 else min(params.top_k, size)
    if keep < size or params.top_p < 1.0:
        order = torch.sort(weights, descending=True, stable=True)
        values, ids = order.values[:keep], order.indices[:keep]
        if params.top_p < 1.0:
            before = values.cumsum(0) - values
            count = max(1, int((before < params.top_p * values.sum()).sum()))
            ids = ids[:count]
        kept = torch.zeros_like(weights)
        kept[ids] = weights[ids]
        weights.copy_(kept)
    if params.min_p > 0.0:
        weights[weights < params.min_p] = 0.0


def _logprobs(
    logits: torch.Tensor, rows: Sequence[Row], wanted: Sequence[int], tokens: Sequence[int]
) -> list[TokenLogprob]:
    table = torch.log_softmax(logits[list(wanted)], dim=-1)
    result = []
    for line, i in zip(table, wanted, strict=True):
        top: tuple[tuple[int, float], ...] = ()
        count = rows[i].params.logprobs or 0
        if count:
            best = line.topk(min(count, line.shape[0]))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            top = tuple((token, value) for token, value in pairs if value != -float("inf"))
        result.append(TokenLogprob(tokens[i], float(line[tokens[i]]), top))
    return result
