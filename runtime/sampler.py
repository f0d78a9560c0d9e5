"""From logits to tokens: penalties, bias, masks, temperature, top-k, top-p, min-p, the draw, log-probabilities.

Vectorised over the batch: each feature is a few tensor operations over the rows that use it, however many they are,
and none where no row does. A row draws the same token with the same log-probabilities whatever else runs beside it:
random numbers are a counter-based function of (seed, position), a row's numbers are computed from its own logits alone,
element by element or in the row's order, and of equal values the lower id comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from palmette.errors import BackendError
from palmette.runtime.protocol import SamplingParams, TokenLogprob
from palmette.torch_later import Array, as_numpy, inference, torch

_MASK64 = (1 << 64) - 1
# Rows whose log-probabilities over the whole vocabulary are in memory at once.
_BLOCK = 64
# Top-p looks for its share among so many of the largest weights first, and sorts all only where these do not reach it.
_HEAD = 1024


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
    return (mix64(mix64(seed & _MASK64) + position) >> 11) * 2.0**-53


class Tally:
    """The distinct tokens of a text and how often each was generated, as arrays that grow with it.

    ids: int64; times: float64, 0.0 for those that only the prompt has.
    """

    def __init__(self, prompt: Sequence[int] | np.ndarray = ()) -> None:
        ids = np.unique(np.asarray(prompt, np.int64))
        self._place = {token: place for place, token in enumerate(ids.tolist())}
        self._ids = ids
        self._times = np.zeros(len(ids))

    def copy(self) -> Tally:
        """An independent one."""
        twin = Tally()
        twin._place, twin._ids, twin._times = self._place.copy(), self._ids.copy(), self._times.copy()
        return twin

    def add(self, token: int) -> None:
        """One more generated token."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.resize(self._ids, 2 * place + 8)
            self._times = np.concatenate([self._times, np.zeros(place + 8)])
        self._ids[place] = token
        self._times[place] += 1.0

    @property
    def ids(self) -> np.ndarray:
        return self._ids[: len(self._place)]

    @property
    def times(self) -> np.ndarray:
        return self._times[: len(self._place)]


@dataclass(slots=True)
class Row:
    """What the sampler must know of the request behind one row of logits.

    position: of the token to be drawn. mask: int32 words, bit t & 31 of word t >> 5 set where token t is allowed, or
    None. banned: ids that may not be drawn now. tally: only where a penalty is set; it holds the prompt's tokens where
    they are to be penalised too.
    """

    params: SamplingParams
    seed: int
    position: int
    mask: np.ndarray | None = None
    banned: Iterable[int] = ()
    tally: Tally | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """One row's outcome. token -1: none can be drawn; numbers: because none is allowed, not because the model gave
    NaN or infinity for all that are. pressure: where it is asked for, and a token was drawn."""

    token: int
    logprob: TokenLogprob | None
    numbers: bool = True
    pressure: float | None = None


def no_numbers(where: str) -> BackendError:
    """What is said where a model's logits leave no distribution."""
    return BackendError(
        f"the model gives no numbers {where}: its logits are NaN or infinite",
        hint='a value overflows where dtype="fp16" is too narrow (try "fp32"), or the weights are damaged',
    )


@inference
def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[Drawn]:
    """Draw one token for each row of `logits` (float32 [R, V], overwritten)."""
    weigh(logits, rows)
    pressed = pressures(logits, rows)
    _mask(logits, rows)
    _ban(logits, rows)
    best, token = logits.max(dim=-1)
    tokens, tops = token.tolist(), best.tolist()
    # NaN and infinity are nobody's choice either: such a row ends its own request, and no other.
    dead = [not math.isfinite(top) for top in tops]
    random = [i for i, row in enumerate(rows) if row.params.temperature > 0 and not dead[i]]
    if random:
        for i, drawn in zip(random, _draw(_some(logits, random), [rows[i] for i in random]), strict=True):
            tokens[i] = drawn
    logprobs = logprobs_of(logits, [-1 if gone else token for token, gone in zip(tokens, dead, strict=True)], rows)
    return [
        _nothing(row, tops[i]) if dead[i] else Drawn(tokens[i], logprobs.get(i), pressure=pressed.get(i))
        for i, row in enumerate(rows)
    ]


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], rows: Sequence[Row]) -> dict[int, TokenLogprob]:
    """By row, the log-probabilities that those rows want which drew a token (-1: none)."""
    wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None and tokens[i] >= 0]
    if not wanted:
        return {}
    asked = [rows[i].params for i in wanted]
    found = token_logprobs(
        _some(logits, wanted),
        [tokens[i] for i in wanted],
        [params.logprobs or 0 for params in asked],
        [params.logprob_token_ids for params in asked],
    )
    return dict(zip(wanted, found, strict=True))


def pressures(logits: Array, rows: Sequence[Row]) -> dict[int, float]:
    """By row that asks for it, the share of probability that its mask removes: of the logits (float32 [R, V]) as they
    are before the mask and the temperature, in float64. Each row by itself, so that it is the same in any batch."""
    found = {i: 0.0 for i, row in enumerate(rows) if row.params.pressure}
    for i in found:
        mask = rows[i].mask
        if mask is None:
            continue
        line = as_numpy(logits[i]).astype(np.float64)
        allowed = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little", count=len(line))
        # A row without numbers draws nothing.
        top = line.max()
        if math.isfinite(top):
            weights = np.exp(line - top)
            found[i] = float(weights[allowed == 0].sum() / weights.sum())
    return found


def _nothing(row: Row, top: float) -> Drawn:
    """No token, since the row forbids all (or all but those that the model does), or since there are no numbers."""
    return Drawn(-1, None, numbers=top == -math.inf and forbids(row))


def forbids(row: Row) -> bool:
    """Whether a row without a possible token has none because of what was asked for."""
    return not row.mask.any() if row.mask is not None else bool(row.banned)


@inference
def token_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], top: Sequence[int], asked: Sequence[Sequence[int]]
) -> list[TokenLogprob]:
    """Of each row of `logits` (float32 [R, V]) the log-probability of its token, those of its `top` best tokens (fewer
    where fewer are possible) and of the ids `asked`."""
    result: list[TokenLogprob] = []
    for start in range(0, len(tokens), _BLOCK):
        block = slice(start, start + _BLOCK)
        result += _block_logprobs(logits[block], tokens[block], top[block], asked[block])
    return result


def _block_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], top: Sequence[int], asked: Sequence[Sequence[int]]
) -> list[TokenLogprob]:
    table = torch.log_softmax(logits, dim=-1)
    wanted = [(token, *more) for token, more in zip(tokens, asked, strict=True)]
    lines = [line for line, ids in enumerate(wanted) for _ in ids]
    values = iter(table[lines, [token for ids in wanted for token in ids]].tolist())
    count = min(max(top), table.shape[-1])
    best = _best(table, count) if count else [()] * len(wanted)
    result = []
    for ids, most, pairs in zip(wanted, top, best, strict=True):
        (token, value), *others = [(token, next(values)) for token in ids]
        possible = tuple(pair for pair in pairs[:most] if pair[1] != -float("inf"))
        result.append(TokenLogprob(token, value, possible, tuple(others)))
    return result


def _best(table: torch.Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """The `count` largest of each row (float32 [R, V]) as (id, value), best first, equal ones by id."""
    # Read as integers, with the lower bits of negative ones turned round, floats are in the same order. With the id
    # below them no two are equal, so that a row's best do not depend on how many others ask for.
    bits = table.view(torch.int32)
    ranks = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() * 2**32
    ids = (ranks - torch.arange(table.shape[-1], device=table.device)).topk(count, dim=-1).indices
    values = table.gather(-1, ids)
    return [tuple(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]


# -- before the draw, in place, in this order ------------------------------------------------------------------------


@inference
def weigh(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    """Penalties and bias: what makes other logits of the model's own, whatever may be drawn."""
    _repeat_less(logits, rows)
    _count_down(logits, rows)
    _bias(logits, rows)


def _repeat_less(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    """The repetition penalty divides or multiplies the logits of prompt and generated tokens (Keskar et al. 2019,
    CTRL)."""
    parts = []
    for i, row in enumerate(rows):
        penalty = row.params.repetition_penalty
        if row.tally is not None and penalty != 1.0:
            parts.append((i, row.tally.ids, np.full(len(row.tally.ids), penalty)))
    _change(logits, parts, lambda values, penalty: torch.where(values > 0, values / penalty, values * penalty))


def _count_down(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    """Frequency and presence penalties count generated tokens, as OpenAI defines them."""
    parts = []
    for i, row in enumerate(rows):
        frequency, presence = row.params.frequency_penalty, row.params.presence_penalty
        if row.tally is not None and (frequency or presence):
            came = row.tally.times > 0
            with np.errstate(over="ignore"):
                parts.append((i, row.tally.ids[came], frequency * row.tally.times[came] + presence))
    _change(logits, parts, torch.sub)


def _bias(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    parts = [(i, row.params.logit_bias) for i, row in enumerate(rows) if row.params.logit_bias]
    _change(
        logits,
        [(i, np.array(list(bias), np.int64), np.array(list(bias.values()), np.float64)) for i, bias in parts],
        torch.add,
    )


def _change(
    logits: torch.Tensor,
    parts: Sequence[tuple[int, np.ndarray, np.ndarray]],
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Put `change(logits, amounts)`, in float64, over the logits that parts = (row, ids, amounts) name."""
    ids = np.concatenate([part for _, part, _ in parts]) if parts else np.empty(0)
    if not len(ids):
        return
    lines = np.repeat([row for row, _, _ in parts], [len(part) for _, part, _ in parts])
    at = (torch.from_numpy(lines).to(logits.device), torch.from_numpy(ids).to(logits.device))
    amounts = torch.from_numpy(np.concatenate([part for _, _, part in parts])).to(logits.device)
    # Two logits that are infinite would leave no distribution.
    limit = torch.finfo(torch.float32).max
    logits[at] = change(logits[at].double(), amounts).clamp_(-limit, limit).float()


def _mask(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    masks = [(i, row.mask) for i, row in enumerate(rows) if row.mask is not None]
    if not masks:
        return
    words = np.stack([mask for _, mask in masks]).view(np.uint8)
    bits = np.unpackbits(words, axis=-1, bitorder="little", count=logits.shape[-1])
    forbidden = torch.from_numpy(bits).to(logits.device) == 0
    _put(logits, [i for i, _ in masks], lambda part: part.masked_fill_(forbidden, -torch.inf))


def _ban(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    pairs = [(i, token) for i, row in enumerate(rows) for token in row.banned]
    if pairs:
        logits[[i for i, _ in pairs], [token for _, token in pairs]] = -torch.inf


def _some(table: torch.Tensor, lines: list[int]) -> torch.Tensor:
    """Those lines of the table, which is itself where they are all."""
    return table if len(lines) == len(table) else table[lines]


def _put(table: torch.Tensor, lines: list[int], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Put `change(lines)`, which may work in place, over those lines of the table."""
    part = change(_some(table, lines))
    if part is not table:
        table[lines] = part


# -- the draw --------------------------------------------------------------------------------------------------------


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """Temperature, then `pick`, in float64."""
    params = [row.params for row in rows]
    scaled = logits.double()
    temperature = _column([each.temperature for each in params], scaled)
    weights = scaled.sub_(scaled.max(dim=-1, keepdim=True).values).div_(temperature).exp_()
    return pick(weights, params, [uniform(row.seed, row.position) for row in rows])


def pick(weights: torch.Tensor, params: Sequence[SamplingParams], at: Sequence[float]) -> list[int]:
    """A column for each row of `weights` (float64 [R, C], the largest of a row 1.0; overwritten): top-k, top-p, min-p
    in that order, then the inverse of the cumulative distribution at the numbers `at` in [0, 1)."""
    _keep_top_k(weights, [each.top_k for each in params])
    _keep_top_p(weights, [each.top_p for each in params])
    if any(each.min_p > 0.0 for each in params):
        weights.masked_fill_(weights < _column([each.min_p for each in params], weights), 0.0)
    cumulative = weights.cumsum(dim=-1)
    points = _column(at, weights)
    total = cumulative[:, -1:].contiguous()
    # Below the total even where the product rounds up to it; right=True: the first sum above the point, so that a
    # token of weight 0 is never drawn.
    points = torch.minimum(points * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, points, right=True)[:, 0].tolist()


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _keep_top_k(weights: torch.Tensor, sizes: Sequence[int]) -> None:
    """Zero what is not among the k largest of its row; -1: off."""
    using = [i for i, size in enumerate(sizes) if 0 < size < weights.shape[-1]]
    if using:
        _put(weights, using, lambda part: _largest(part, [sizes[i] for i in using]))


def _keep_top_p(weights: torch.Tensor, shares: Sequence[float]) -> None:
    """Zero what the largest weights, up to that share of their row's sum, leave out; 1.0: off. One is always kept."""
    using = [i for i, share in enumerate(shares) if share < 1.0]
    if not using:
        return

    def change(part: torch.Tensor) -> torch.Tensor:
        # The last of running sums, not `sum()`, whose order of additions depends on the shape.
        limits = _column([shares[i] for i in using], part) * part.cumsum(dim=-1)[:, -1:]
        counts = _reach(part, limits, _HEAD)
        flat = [i for i, count in enumerate(counts) if count > _HEAD]
        if flat:
            for i, count in zip(flat, _reach(part[flat], limits[flat], part.shape[-1]), strict=True):
                counts[i] = count
        return _largest(part, counts)

    _put(weights, using, change)


def _reach(part: torch.Tensor, limits: torch.Tensor, among: int) -> list[int]:
    """How many of a row's largest weights it takes to reach its limit; among + 1 where `among` of them do not."""
    sums = part.topk(min(among, part.shape[-1]), dim=-1).values.cumsum(dim=-1)
    return ((sums < limits).sum(dim=-1) + 1).tolist()


def _largest(part: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The rows with all but the given number of largest weights zeroed."""
    width = part.shape[-1]
    counts = torch.tensor([[min(size, width)] for size in sizes], device=part.device)
    least = part.topk(min(max(sizes), width), dim=-1).values.gather(-1, counts - 1)
    above, level = part > least, part == least
    # Of those that equal the last one kept, the first fill the places that are left.
    keep = above | (level & (level.cumsum(dim=-1) <= counts - above.sum(dim=-1, keepdim=True)))
    return torch.where(keep, part, 0.0)
