"""W14, prefixes that requests of one batch share: can those that arrive together still share their work?

Three modes: once (all together), batches (one prefix's requests after another's), warm-up (so too, and before each
batch the prefix alone).
"""

from __future__ import annotations

import palmette as pt
from palmette.benchmarks.workload import Round, Setup, Workload

# Prefixes: ten, with so many requests on each at least.
_PREFIXES, _SAMPLES = 10, 8


@pt.function
def complete(s: pt.State, prefix: str, suffix: str) -> None:
    s += prefix + suffix + pt.gen("next", max_tokens=1, ignore_eos=True)


def rounds(setup: Setup) -> list[Round]:
    batches: list[Round] = []
    prefixes = max(1, min(_PREFIXES, setup.items // _SAMPLES))
    for index in range(prefixes):
        prefix = setup.text("prefix", index, tokens=1024)
        samples = range(index, setup.items, prefixes)
        suffixes = [setup.text("suffix", index, sample, tokens=128) for sample in samples]
        batch = [{"prefix": prefix, "suffix": f" {suffix}"} for suffix in suffixes]
        if setup.options.mode == "warm-up":
            batches.append([{"prefix": prefix, "suffix": ""}])
        batches.append(batch)
    return batches if setup.options.mode != "once" else [[item for batch in batches for item in batch]]


WORKLOAD = Workload(
    name="W14",
    title="In-batch prefixes",
    about="10 prefixes of 1024 tokens, many requests on each, all at once (--mode batches, warm-up: one by one)",
    program=complete,
    rounds=rounds,
    items=80,
    scale=0.125,
    takes=("mode",),
)
