"""The command line: `python -m palmette.benchmarks.constraints --help`."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from palmette.benchmarks.constraints import data
from palmette.benchmarks.constraints.closing import Closings, close
from palmette.benchmarks.constraints.data import Case
from palmette.benchmarks.constraints.engines import ENGINES, engine
from palmette.benchmarks.constraints.forced import Forced, force
from palmette.benchmarks.constraints.judge import Tally, judge
from palmette.errors import ArgumentError, PalmetteError
from palmette.runtime.constraints.vocabulary import Vocabulary

_ABOUT = """\
How many schemas or regexes an engine compiles, how many of their tests it decides rightly, and how long it takes.

  maskbench   JSONSchemaBench's schemas with instances ("real"), and made ones
  suite       JSON-Schema-Test-Suite, by draft
  regexes     regexes as people write them, with strings
  closing     texts drawn at random from maskbench's schemas: each complete within its tokens, and valid
  forced      the share of tokens that the constraint alone decides, in maskbench's valid instances

A test is right when the masks admit every token and then the end, or do not. "Rejects a valid one" leaves out schemas
of which only the order of keys is in question: these are accepted once the keys stand in the schema's order.
"""
_KINDS = {
    "maskbench": ("json_schema", data.maskbench),
    "suite": ("json_schema", data.suite),
    "regexes": ("regex", data.regexes),
}
# Of our own constraints alone.
_OURS: dict[str, Callable[[list[Case], Vocabulary], Closings | Forced]] = {"closing": close, "forced": force}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m palmette.benchmarks.constraints",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=[*_KINDS, *_OURS])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder of the data")
    parser.add_argument("--engine", default="palmette", metavar="NAMES", help=f"with commas: {', '.join(ENGINES)}")
    parser.add_argument("--limit", type=int, metavar="N", help="so many cases, drawn by the hash of their names")
    parser.add_argument("--part", metavar="NAME", help='one part only, such as "real" or "draft2020-12"')
    parser.add_argument("--model", metavar="NAME", help="whose vocabulary it is; without one, the single bytes")
    parser.add_argument("--names", action="store_true", help="the cases that are refused or decided wrongly, too")
    options = parser.parse_args(words)
    try:
        return _run(options)
    except PalmetteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    kind, load = _KINDS.get(options.what, _KINDS["maskbench"])
    cases = [case for case in load(options.data) if options.part in (None, case.part)]
    if options.limit is not None:
        ordered = sorted(cases, key=lambda case: hashlib.sha256(case.name.encode()).digest())
        cases = list(islice(ordered, options.limit))
    vocabulary = Vocabulary.of_bytes() if options.model is None else _vocabulary(options.model)
    if options.what in _OURS:
        print("\n".join(_OURS[options.what](cases, vocabulary).lines(names=options.names)))
        return 0
    documents = data.documents(options.data) if options.what == "suite" else {}
    for name in options.engine.split(","):
        if name not in ENGINES:
            raise ArgumentError(f"there is no engine {name!r}", hint=f"known are: {', '.join(ENGINES)}")
        try:
            made = engine(name, vocabulary, documents)
        except ArgumentError as error:
            print(error.message)
            continue
        for part, tally in sorted(judge(made, kind, cases, vocabulary).items()):
            print("\n".join(report(f"{name}, {options.what} {part}", tally, names=options.names)))
    return 0


def _vocabulary(model: str) -> Vocabulary:
    from palmette.runtime.models.checkpoint import open_checkpoint
    from palmette.runtime.models.registry import resolve

    return open_checkpoint(resolve(model)).tokenizer().vocabulary


def report(title: str, tally: Tally, *, names: bool) -> list[str]:
    def share(n: int, of: int) -> str:
        return f"{n:6} of {of} ({100 * n / of:.2f} %)" if of else "     0"

    lines = [
        title,
        f"  compiled               {share(tally.compiled, tally.cases)}",
        f"  with tests             {tally.tested:6} ({tally.tests} tests)",
        f"  all tests right        {share(len(tally.right), tally.cases)}",
        f"  accepts an invalid one {share(len(tally.accepted), tally.tested)}"
        + (f", {len(tally.disputed)} more that jsonschema accepts too" if tally.disputed else ""),
        f"  rejects a valid one    {share(len(tally.rejected), tally.tested)}",
        f"  for its keys' order    {share(len(tally.order), tally.tested)}",
        f"  compile, ms            {_times(tally.compiles, 1e3)}",
        f"  mask, us               {_times(tally.masks, 1e6)}",
    ]
    if tally.refusals:
        lines.append("  refused by keyword     " + ", ".join(f"{k} {n}" for k, n in tally.refusals.most_common(30)))
    if names:
        for fault in ("accepted", "disputed", "rejected", "order"):
            lines += [f"    {fault}: {name}" for name in getattr(tally, fault)]
        lines += [f"    refused: {name}: {message}" for name, message in tally.refused]
    return lines


def _times(seconds: list[float], scale: float) -> str:
    if not seconds:
        return "none"
    p50, p95, p99 = np.percentile(np.array(seconds) * scale, [50, 95, 99])
    return f"p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.1f}, max {max(seconds) * scale:.1f}"


if __name__ == "__main__":
    sys.exit(main())
