"""How many tokens of valid instances the constraint alone decides, and whether they are the tokenizer's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from palmette.benchmarks.constraints.data import Case
from palmette.errors import ConstraintError
from palmette.runtime.constraints import ConstraintCompiler
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import Constraint


@dataclass
class Forced:
    """Of the tokens of compact valid instances that are taken as they stand. A run is what is forced at one place;
    strange: runs that are not the tokens which the tokenizer writes for the whole text."""

    schemas: int = 0
    instances: int = 0
    tokens: int = 0
    forced: int = 0
    runs: int = 0
    strange: list[tuple[str, bytes, list[bytes], list[bytes]]] = field(default_factory=list)

    def lines(self, *, names: bool) -> Iterator[str]:
        yield f"forced: {self.schemas} schemas, {self.instances} instances"
        yield f"  tokens                 {self.tokens:6}"
        yield f"  forced                 {self.forced:6} ({100 * self.forced / max(1, self.tokens):.1f} %)"
        yield f"  runs                   {self.runs:6}"
        yield f"  not canonical          {len(self.strange):6}"
        if names:
            yield from (f"    {name} behind {at!r}: {got} for {own}" for name, at, got, own in self.strange)


def force(cases: Iterable[Case], vocabulary: Vocabulary) -> Forced:
    """Walks the tokenizer's own tokens of each instance, and asks at every place that no run before it has passed."""
    compiler, out = ConstraintCompiler(vocabulary), Forced()
    for case in cases:
        try:
            compiled = compiler.compile(Constraint("json_schema", json.dumps(case.spec)))
        except ConstraintError:
            continue
        out.schemas += 1
        for valid, instance in case.tests:
            try:
                text = json.dumps(instance, ensure_ascii=False, separators=(",", ":")).encode()
            except UnicodeEncodeError:
                continue
            own = vocabulary.spell(text) if valid else None
            if own is None:
                continue
            taken, forced, runs, strange = 0, 0, 0, []
            matcher = compiled.start()
            while taken < len(own):
                run = matcher.forced(own[:taken])
                if run:
                    runs += 1
                    if run != own[taken : taken + len(run)]:
                        told = [vocabulary.token_bytes[t] or b"" for t in run]
                        meant = [vocabulary.token_bytes[t] or b"" for t in own[taken : taken + len(run)]]
                        strange.append((case.name, vocabulary.text(own[:taken])[-40:], told, meant))
                        run = []
                step = run or own[taken : taken + 1]
                if not all(map(matcher.advance, step)):
                    break  # its keys stand in another order
                forced += len(run)
                taken += len(step)
            if taken == len(own) and matcher.allows_end():
                out.instances += 1
                out.tokens += len(own)
                out.forced += forced
                out.runs += runs
                out.strange += strange
    return out
