"""The command line: `python -m palmette.benchmarks.peers --help`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from palmette.benchmarks.peers import ceilings, engines, perplexity, programs, table, workloads
from palmette.benchmarks.peers.engines import Contender, Place, install_hint
from palmette.benchmarks.peers.install import INSTALLERS, install
from palmette.benchmarks.peers.roofline import shape
from palmette.benchmarks.peers.rounds import Plan, Session, as_runs
from palmette.benchmarks.peers.server import CompletionsBackend, Server
from palmette.benchmarks.peers.worker import Worker
from palmette.errors import ArgumentError, BackendError, PalmetteError

_ABOUT = """\
palmette and other engines on the same weights, in turns: A1 B1 A2 B2 ..., so that both see the same machine.

  python -m palmette.benchmarks.peers list                      workloads, engines, and what is installed
  python -m palmette.benchmarks.peers install llama.cpp openvino
  python -m palmette.benchmarks.peers run --peers llama.cpp,openvino --workloads A,B --runs 5
  python -m palmette.benchmarks.peers run --palmette stored --peers llama.cpp:stored --workloads all
  python -m palmette.benchmarks.peers programs --runs 5         programs, beside a plain client of vLLM's server
  python -m palmette.benchmarks.peers table peers.json          show saved runs again
  python -m palmette.benchmarks.peers perplexity                of one text, beside llama.cpp's

An engine is named with the form it holds the weights in, "llama.cpp:q8_0"; without one, its usual forms run.
"stored" is the file as it is. Every run has texts that no engine has seen. Figures are medians with least and most;
ratios say how many times better palmette is, by the medians, with least and most over the rounds. Bounds are what
bytes and multiply-adds take at the least on this machine, see roofline.py.
"""


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    # Ended so, it still ends its workers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        status: int = options.do(options)
        return status
    except PalmetteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    name = "python -m palmette.benchmarks.peers"
    parser = argparse.ArgumentParser(prog=name, description=_ABOUT, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--folder", type=Path, default=engines.FOLDER, help="of the environments (%(default)s)")
    shared.add_argument("--model", default="smollm2-135m", help="a GGUF file, or a name that palmette knows")

    one = commands.add_parser("list", parents=[shared], help="workloads, engines, and what is installed")
    one.set_defaults(do=_list)

    one = commands.add_parser("install", parents=[shared], help="make the environments of peers")
    one.add_argument("peers", nargs="+", metavar="PEER", help=", ".join(INSTALLERS))
    one.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once (%(default)s)")
    one.set_defaults(do=_install)

    one = commands.add_parser("run", parents=[shared], help="measure, print the tables, write JSON")
    one.add_argument("--peers", default=",".join(engines.PEERS), help="with commas (%(default)s); '' for none")
    one.add_argument("--palmette", default="stored,q8_0,bf16", metavar="FORMS", help="palmette's forms (%(default)s)")
    one.add_argument("--workloads", default="all", help="with commas: A,B,C,D,E,E2,F,G (%(default)s)")
    one.add_argument("--runs", type=int, default=5, help="of each engine and workload (%(default)s)")
    one.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each engine (%(default)s)")
    one.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine (%(default)s)")
    one.add_argument("--long", type=float, default=float("inf"), help="no second run of what took so many seconds")
    one.add_argument("--json", type=Path, default=Path("peers.json"), help="where the runs go (%(default)s)")
    one.set_defaults(do=_run)

    one = commands.add_parser("programs", parents=[shared], help="whole programs, beside a plain client of a server")
    one.add_argument("--workloads", default=",".join(programs.USUAL), help="with commas (%(default)s)")
    one.add_argument("--form", default="bf16", help="in which palmette holds the weights (%(default)s, as vLLM)")
    one.add_argument("--runs", type=int, default=3, help="of each engine and workload (%(default)s)")
    one.add_argument("--parallel", type=int, default=64, help="programs at once (%(default)s)")
    one.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each engine (%(default)s)")
    one.add_argument("--alone", action="store_true", help="palmette alone")
    one.add_argument("--json", type=Path, default=Path("programs.json"), help="where the runs go (%(default)s)")
    one.set_defaults(do=_programs)

    one = commands.add_parser("perplexity", parents=[shared], help="of one text by the same files, beside llama.cpp's")
    one.add_argument("--forms", default="stored,q8_0,bf16", help="of the weights, with commas (%(default)s)")
    one.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each engine (%(default)s)")
    one.set_defaults(do=_perplexity)

    one = commands.add_parser("table", help="show saved runs; of several files, all their runs")
    one.add_argument("files", nargs="+", type=Path, metavar="FILE")
    one.set_defaults(do=_table)
    return parser


def _place(options: argparse.Namespace) -> Place:
    from palmette.runtime.models.registry import resolve

    return Place(options.folder.expanduser().absolute(), Path(resolve(options.model)).absolute())


def _list(options: argparse.Namespace) -> int:
    for name, workload in workloads.WORKLOADS.items():
        print(f"{name:4} {workload.title}")
    place = _place(options)
    for kind, engine in engines.KINDS.items():
        print(f"\n{kind}: {engine.title}")
        for form in engine.forms:
            contender = Contender(kind, form)
            ready = "ready" if not contender.missing(place) else f"missing: {install_hint(contender, place)}"
            print(f"  {contender.name:20} {'usual  ' if form in engine.usual else '       '} {ready}")
    return 0


def _install(options: argparse.Namespace) -> int:
    install(options.peers, _place(options), jobs=options.jobs)
    return 0


def _run(options: argparse.Namespace) -> int:
    from palmette.benchmarks.manifest import manifest
    from palmette.benchmarks.subject import load

    place, names = _place(options), workloads.named(options.workloads)
    wanted = [Contender("palmette", form) for form in options.palmette.split(",") if form]
    wanted += engines.contenders(options.peers) if options.peers else []
    missing = {each.name: engines.install_hint(each, place) for each in wanted if each.missing(place)}
    for name, hint in missing.items():
        print(f"{name} is missing: {hint}", flush=True)
    present = {each.name: each for each in wanted if each.name not in missing}

    subject = load(str(place.model))
    told = manifest(subject, _machine(), {}, sys.argv)
    codec = subject.tokenizer
    del subject  # its weights: the workers have their own

    def start(name: str) -> Worker:
        log = place.folder / "logs" / f"{name.replace(':', '-')}.log"
        command = present[name].command(place, options.threads)
        return Worker(name, command, engines.environment(options.threads), log)

    plan = Plan(list(present), names, options.runs, options.patience, options.long)
    session = Session(plan, start, partial(workloads.made, codec), partial(print, flush=True))
    session.notes += [(name, "all", f"not installed; {hint}") for name, hint in missing.items()]
    try:
        session.go()
    finally:
        data = {
            "manifest": {**told, "threads": options.threads},
            "engines": session.facts,
            "runs": [run._asdict() for run in session.runs],
            "notes": session.notes,
            "peaks": session.peaks,
            "ceilings": _ceilings(session, options.threads),
        }
        options.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _show([data])
    print(f"\nwritten to {options.json}")
    return 0 if not missing else 1


def _programs(options: argparse.Namespace) -> int:
    from palmette.benchmarks.subject import Subject
    from palmette.benchmarks.workloads import named
    from palmette.runtime.models.model import load_model

    names = [workload.name for workload in named(options.workloads.split(","))]
    place = _place(options)
    form = None if options.form == "stored" else options.form
    subject = Subject(options.model, place.model, *load_model(place.model, quantization=form))
    told = partial(print, flush=True)
    with contextlib.ExitStack() as stack:
        peers = {}
        if not options.alone:
            vllm = Contender("vllm", "bf16")
            if vllm.missing(place):
                raise ArgumentError("vLLM is not installed", hint=install_hint(vllm, place))
            log = place.folder / "logs" / "vllm-server.log"
            told("vLLM's server starts, which takes a minute")
            server = Server(
                place.python("vllm"),
                place.weights("folder"),
                threads=options.threads,
                environment=engines.environment(options.threads),
                log=log,
            )
            stack.callback(server.close)
            peers["vllm"] = CompletionsBackend(server.port, subject.tokenizer)
        settings = {"kv_tokens": 32768, "threads": options.threads}
        runs = programs.compare(
            names, subject, peers, settings=settings, parallel=options.parallel, runs=options.runs, told=told
        )
    options.json.write_text(json.dumps([run._asdict() for run in runs], indent=1) + "\n", encoding="utf-8")
    Console().print(programs.table(runs))
    print(f"\nwritten to {options.json}")
    return 0


def _perplexity(options: argparse.Namespace) -> int:
    place, forms = _place(options), options.forms.split(",")
    for form in forms:
        contender = engines.contenders(f"llama.cpp:{form}")[0]
        needed = [*contender.missing(place), place.llama / "llama-perplexity"]
        if missing := [path for path in needed if not path.exists()]:
            raise BackendError(f"{missing[0]} is missing", hint=install_hint(contender, place))
    Console().print(perplexity.shown(perplexity.compared(place, forms, options.threads)))
    return 0


def _ceilings(session: Session, threads: int) -> dict[str, Any] | None:
    models = [model for facts in session.facts.values() if (model := shape(facts))]
    if not models:
        return None
    formats = ["BF16", *(model.main for model in models)]
    return ceilings.measured([model.bytes for model in models], formats, threads)._asdict()


def _machine() -> dict[str, Any]:
    """What `palmette doctor` finds of Python, torch and processor."""
    words = [sys.executable, "-P", "-m", "palmette", "doctor", "--json"]
    found = subprocess.run(words, capture_output=True, text=True)
    told: dict[str, Any] = json.loads(found.stdout) if found.stdout.startswith("{") else {}
    return {name: told[name] for name in ("python", "torch", "processor") if name in told}


def _table(options: argparse.Namespace) -> int:
    _show([json.loads(file.read_text(encoding="utf-8")) for file in options.files])
    return 0


def _show(files: Sequence[Mapping[str, Any]]) -> None:
    """Rounds of several files are told apart, so that ratios are of runs that were made in turns."""
    runs = []
    for i, file in enumerate(files):
        runs += [run._replace(round=run.round + 1000 * i) for run in as_runs(file["runs"])]
    facts = {name: each for file in files for name, each in file["engines"].items()}
    peaks: dict[str, int] = {}
    for file in files:
        for name, peak in file["peaks"].items():
            peaks[name] = max(peak, peaks.get(name, 0))
    out = Console(width=max(200, Console().width)) if not sys.stdout.isatty() else Console()
    out.print(table.figures_table(runs))
    out.print()
    out.print(table.ratios_table(runs))
    known = [file["ceilings"] for file in files if file["ceilings"]]
    if known:
        read = {int(size): each for one in known for size, each in one["read"].items()}
        macs = {name: each for one in known for name, each in one["macs"].items()}
        out.print()
        out.print(table.roof_table(runs, facts, ceilings.Ceilings(read, macs, known[-1]["by"])))
        reads = ", ".join(f"{size / 1e6:.0f} MB at {each / 1e9:.1f} GB/s" for size, each in read.items())
        rates = ", ".join(f"{name} {each / 1e9:.0f}" for name, each in macs.items())
        out.print(f"Ceilings: {known[-1]['by']} reads {reads}; multiply-adds, G/s: {rates}.")
    for line in table.notes(runs, [note for file in files for note in file["notes"]], peaks):
        out.print(line, highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
