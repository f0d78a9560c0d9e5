"""Tokens drawn by the C++ kernels: what runtime/sampler.py defines, without a sort or a float64 copy of the logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from palmette.kernels.cpu.sampling import NOTHING_ALLOWED, Ask, Sampler
from palmette.runtime.sampler import Drawn, Row, forbids, logprobs_of, pressures, uniform, weigh
from palmette.torch_later import Array, torch


def drawn_natively(sampler: Sampler) -> Callable[[Array, Sequence[Row]], list[Drawn]]:
    """`sampler.sample` by C++. Log-probabilities are still torch's: a prompt's and a healed token's are, too, and the
    same token has the same in all places."""

    def sample(logits: Array, rows: Sequence[Row]) -> list[Drawn]:
        # Few rows have penalties or bias, and then of few tokens.
        if any(row.tally is not None or row.params.logit_bias for row in rows):
            weigh(torch.as_tensor(logits), rows)
        pressed = pressures(logits, rows)
        tokens = [outcome.token for outcome in sampler.sample(logits, [_ask(row) for row in rows])]
        wanted = any(row.params.logprobs is not None for row in rows)
        found = logprobs_of(torch.as_tensor(logits), tokens, rows) if wanted else {}
        return [
            Drawn(token, found.get(i), pressure=pressed.get(i))
            if token >= 0
            else Drawn(-1, None, numbers=token == NOTHING_ALLOWED and forbids(rows[i]))
            for i, token in enumerate(tokens)
        ]

    return sample


def _ask(row: Row) -> Ask:
    params = row.params
    at = uniform(row.seed, row.position) if params.temperature > 0 else 0.0
    return Ask(params.temperature, params.top_k, params.top_p, params.min_p, at, row.mask, tuple(row.banned))
