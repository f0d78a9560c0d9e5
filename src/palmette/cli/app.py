"""The commands and their help. What each does is in the module of its name, imported only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

DEFAULT_MODEL = "smollm2-135m"
TARGET = "FILE.py[:FUNCTION]"  # how help and errors call what `run` runs

app = typer.Typer(
    name="palmette",
    help="Programs over language models, and the runtime that runs them.",
    epilog="Begin with:  palmette chat  |  palmette run examples/tour.py  |  palmette doctor",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models = typer.Typer(
    help="Fetch and find models.\n\n"
    "A model is a name that palmette knows, a local folder or .gguf file, or the id of a repository on the "
    "Hugging Face hub.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models, name="models")

ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="MODEL", help="A known name, a folder, a .gguf file, or a hub id."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value, for programs to read.")]


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print("palmette", version("palmette"))
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Examples:\n\n"
    "  palmette run examples/tour.py\n\n"
    '  palmette run examples/classify.py --arg message="Where is my order?"\n\n'
    "  palmette run my.py:summarise --model my-model.gguf --arg words=20 --json"
)
def run(
    program: Annotated[str, typer.Argument(metavar=TARGET, help="A Python file, and which @palmette.function in it.")],
    model: ModelOption = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg", "-a", metavar="NAME=VALUE", help="An argument of the program, read as its annotation says. Repeat."
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="URL", help="A palmette server to run on. Not in this version.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a program, show its text as it comes, then its variables with their tokens.

    Without FUNCTION: the file's only @palmette.function, or the one that is called as the file is, or main.
    Without --model: the backend that the file sets by palmette.set_default_backend, else smollm2-135m.
    """
    from palmette.cli.run import run_program

    run_program(program, model=model, pairs=arg or [], backend=backend, as_json=json)


@app.command(
    epilog="Examples:\n\n"
    "  palmette chat\n\n"
    '  palmette chat --system "You answer in rhymes." --temperature 0.7\n\n'
    "  palmette chat --model ./my-model.gguf"
)
def chat(
    model: ModelOption = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="What the assistant is told first.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the most probable token.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer, in tokens.")] = 512,
) -> None:
    """Talk with a model. /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the talk."""
    from palmette.cli.chat import talk

    talk(model or DEFAULT_MODEL, system=system, temperature=temperature, max_tokens=max_tokens)


@models.command("pull", epilog="Example:\n\n  palmette models pull smollm2-135m")
def models_pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A known name or a hub id.")],
) -> None:
    """Fetch a model into the cache, with a progress bar, and check its hash. Does nothing where it is there already."""
    from palmette.cli.models import pull

    pull(model)


@models.command("list")
def models_list(json: JsonOption = False) -> None:
    """The models that palmette knows by name, and which of them are in the cache."""
    from palmette.cli.models import show

    show(as_json=json)


@models.command("path", epilog='Example:\n\n  ls -lh "$(palmette models path smollm2-135m)"')
def models_path(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A known name, a local path, or a hub id.")],
) -> None:
    """Print where a model lies on this machine. Fails where it has not been pulled."""
    from palmette.cli.models import path

    print(path(model))


@app.command(
    epilog="Examples:\n\n"
    "  palmette lint schema.json\n\n"
    "  palmette lint schemas.jsonl --quiet\n\n"
    "  palmette lint grammar.lark --model smollm2-135m\n\n"
    "  palmette lint --regex '\\d{4}-\\d{2}'\n\n"
    "  cat schema.json | palmette lint - --json\n\n"
    "enforced: the grammar says it. rewritten: into others that do. monitored: watched beside the grammar. annotation: "
    "asks for nothing. refused: it cannot be enforced exactly, and is never ignored."
)
def lint(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...", help="Schemas (.json, .jsonl), grammars (.lark, .gbnf, .ebnf), or - for standard input."
        ),
    ] = None,
    regex: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="A pattern. Repeat for several.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="MODEL", help="Also count the shortest text in its tokens.")
    ] = None,
    whitespace: Annotated[
        bool, typer.Option("--whitespace", help="As gen(whitespace=True): JSON with blanks.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only what is refused, and the summary.")] = False,
    json: JsonOption = False,
) -> None:
    """Tell what becomes of each keyword of JSON Schemas, and what is refused, without a model.

    Per schema: every keyword that is enforced, rewritten, monitored or an annotation; all faults with their places
    where it is refused; the shortest and the longest text. A line of a .jsonl is a schema, or a record with "schema".
    Exit status 1 where anything is refused.
    """
    from palmette.cli.lint import run_lint

    status = run_lint(files or [], patterns=regex or [], model=model, whitespace=whitespace, quiet=quiet, as_json=json)
    if status:
        raise typer.Exit(status)


@app.command()
def doctor(
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="MODEL", help="The model to load and report on.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Report what palmette found on this machine: Python, torch, processor, kernels, models, memory.

    Loads --model (smollm2-135m where it is in the cache) and tells the size of it and of its KV cache.
    """
    from palmette.cli.doctor import report

    report(model, as_json=json)


@app.command(
    epilog="Examples:\n\n"
    "  palmette bench --list\n\n"
    "  palmette bench W5 --ablate cache-off --ablate sequential-forks\n\n"
    "  palmette bench all --model tiny --ablate all --json results.json\n\n"
    "  palmette bench W15 --zipf --items 256 --kv-tokens 8192 --policy dfs --repeat 3\n\n"
    "Times are of this machine. Token counts, forward calls and hit rates are not: --model tiny finds them quickly."
)
def bench(
    workloads: Annotated[
        list[str] | None, typer.Argument(metavar="WORKLOAD...", help="W1, W5 ...: see --list. Or: all.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Say what each workload and ablation is.")] = False,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="As elsewhere, or tiny: small, random, over bytes.")
    ] = DEFAULT_MODEL,
    items: Annotated[int | None, typer.Option(min=1, help="How many programs. Default: see --list.")] = None,
    scale: Annotated[
        float | None,
        typer.Option(min=0.001, help="Factor of lengths; 1: as published. Default: see --list (a minute or less)."),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Programs in progress at once.")] = 64,
    seed: Annotated[int, typer.Option(help="Of synthetic data, of the order, of what is drawn.")] = 0,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="Size of the KV cache, in tokens.")] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who is let in first: lpm, fcfs, dfs, priority, fair, random.")
    ] = None,
    eviction: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which cached prefix goes first: lru, lfu, fifo, priority, size.")
    ] = None,
    ablate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run again with this changed, and compare: cache-off, flat-cache, fcfs, random, lpm, no-dedupe, "
            "sequential-forks, no-hints, no-speculation; or all. Repeat for several; --list explains them.",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each variant, in turn; the median is shown.")] = 1,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Recorded data. Default: $PALMETTE_BENCH_DATA, ../shared/data/bench."),
    ] = None,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Use made-up data of the same shape even where recorded data is found.")
    ] = False,
    long: Annotated[bool, typer.Option("--long", help="W9: long answers.")] = False,
    mode: Annotated[
        Literal["once", "batches", "warm-up"], typer.Option(help="W14: all prefixes at once, or one after the other.")
    ] = "once",
    zipf: Annotated[bool, typer.Option("--zipf", help="W15: some system prompts are asked much oftener.")] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all numbers and where they come from; -: to the output.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the requests as JSON lines, for the simulator.")
    ] = None,
) -> None:
    """Run the SGLang paper's workloads on an engine in this process, and compare it with itself without its parts.

    Per workload a table: programs per second, latencies, tokens (prompt, cached, forced, generated), forward calls and
    tokens, the hit rate of the prefix cache against the best possible one, preemptions, evictions. Ctrl-C ends it with
    what is done so far.
    """
    from palmette.benchmarks.workload import Options
    from palmette.cli.bench import Wishes, list_workloads, run_bench

    if list_them:
        list_workloads()
        return
    asked = {"kv_tokens": kv_tokens, "policy": policy, "eviction": eviction}
    run_bench(
        workloads or [],
        Wishes(
            model=model,
            items=items,
            scale=scale,
            parallel=parallel,
            seed=seed,
            settings={name: value for name, value in asked.items() if value is not None},
            ablate=ablate or [],
            repeat=repeat,
            data=data,
            synthetic=synthetic,
            options=Options(long=long, mode=mode, zipf=zipf),
            json=json,
            trace=trace,
        ),
    )


@app.command(
    epilog="Examples:\n\n"
    "  palmette simulate --policy fcfs --policy lpm\n\n"
    "  palmette simulate --workload chat --rate 4 --model-shape llama-3-70b --devices 4\n\n"
    "  palmette simulate trace.jsonl --hardware h200 --policy fair --json\n\n"
    "  palmette simulate --replicas 1000 --rate 20000 --requests 50000 --router prefix-affinity\n\n"
    'A line of a trace: {"time": seconds, "prompt": \\[ids], "output": tokens}, and if need be tenant, priority, '
    "namespace, max_tokens, reply (the output's ids), after (the request that it follows). palmette bench --trace "
    "writes them, and --save here. Times are those of an ideal machine: compare with them, do not promise them."
)
def simulate(
    trace: Annotated[
        Path | None, typer.Argument(metavar="[TRACE.jsonl]", help="What arrives. Without: --workload is made up.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="lpm, fcfs, dfs, priority, fair, random. Repeat to compare."),
    ] = None,
    workload: Annotated[str, typer.Option(help="shared-prefix, chat, independent.")] = "shared-prefix",
    requests: Annotated[int, typer.Option(min=1, help="How many, of a made-up workload.")] = 2000,
    rate: Annotated[
        float,
        typer.Option(help="Requests (chat: conversations) that arrive in a second, over all engines; inf: at once."),
    ] = 20.0,
    prompt: Annotated[str | None, typer.Option(metavar="TOKENS", help="independent: N or LOW:HIGH.")] = None,
    prefix: Annotated[str | None, typer.Option(metavar="TOKENS", help="shared-prefix: what a group shares.")] = None,
    suffix: Annotated[str | None, typer.Option(metavar="TOKENS", help="shared-prefix: what is new each time.")] = None,
    groups: Annotated[int | None, typer.Option(min=1, help="shared-prefix: how many prefixes.")] = None,
    zipf: Annotated[
        float | None, typer.Option(min=0.0, help="shared-prefix: how unequal groups are; 0: equal.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TOKENS", help="chat: the system prompt.")] = None,
    user: Annotated[str | None, typer.Option(metavar="TOKENS", help="chat: what the user says in a turn.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, help="chat: requests of a conversation.")] = None,
    think: Annotated[float | None, typer.Option(min=0.0, help="chat: mean seconds before the next turn.")] = None,
    output: Annotated[str | None, typer.Option(metavar="TOKENS", help="Output of a request: N or LOW:HIGH.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=0, help="What each asks for at the most. Default: just its output.")
    ] = None,
    tenants: Annotated[int | None, typer.Option(min=1, help="How many tenants the requests belong to.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the made-up workload.")] = None,
    model_shape: Annotated[
        str, typer.Option(metavar="SHAPE", help="smollm2-135m, llama-3-8b, llama-3-70b, or a model's config.json.")
    ] = "llama-3-8b",
    hardware: Annotated[str, typer.Option(help="a100, h100, h200, cpu.")] = "h100",
    devices: Annotated[int, typer.Option(min=1, help="How many share the model, in each engine.")] = 1,
    dtype_bytes: Annotated[float, typer.Option(min=0.5, help="Bytes of a weight and of an element of the KV.")] = 2,
    efficiency: Annotated[float, typer.Option(min=0.01, max=1, help="Which part of the peaks is reached.")] = 1.0,
    replicas: Annotated[int, typer.Option(min=1, help="How many engines.")] = 1,
    router: Annotated[str, typer.Option(help="round-robin, least-loaded, prefix-affinity.")] = "round-robin",
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Size of each KV cache. Default: what fits beside the weights.")
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, help="Requests in progress in an engine.")] = 256,
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Tokens that a step computes.")] = 2048,
    eviction: Annotated[str, typer.Option(help="lru, lfu, fifo, priority, size.")] = "lru",
    cache: Annotated[Literal["on", "off", "flat"], typer.Option(help="Whether prefixes are kept.")] = "on",
    dedupe: Annotated[bool, typer.Option(help="Whether a request waits for one that computes its prefix.")] = True,
    hints: Annotated[bool, typer.Option(help="Whether a family's last text is held for its next request.")] = True,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the trace as JSON lines.")] = None,
    json: JsonOption = False,
) -> None:
    """Run a trace through the scheduler and the prefix cache, with a cost model in the place of a model.

    The decisions are the engine's own, event by event; the time of a step is the roofline of a model's shape on
    hardware. Shows throughput, latencies, the hit rate against the best possible one, preemptions, use of the hardware
    and fairness, for each policy. Ctrl-C ends it with the policies that are done.
    """
    from palmette.cli.simulate import Scene, run_simulate

    run_simulate(
        Scene(
            trace=trace,
            workload=workload,
            requests=requests,
            rate=rate,
            shape=model_shape,
            hardware=hardware,
            devices=devices,
            dtype_bytes=dtype_bytes,
            efficiency=efficiency,
            replicas=replicas,
            router=router,
            policies=policy or ["lpm"],
            lengths={
                "prompt": prompt,
                "prefix": prefix,
                "suffix": suffix,
                "groups": groups,
                "zipf": zipf,
                "system": system,
                "user": user,
                "turns": turns,
                "think": think,
                "output": output,
                "max_tokens": max_tokens,
                "tenants": tenants,
                "seed": seed,
            },
            settings={
                "kv_tokens": kv_tokens,
                "max_running": max_running,
                "max_step_tokens": max_step_tokens,
                "eviction": eviction,
                "cache": {"on": True, "off": False, "flat": "flat"}[cache],
                "dedupe": dedupe,
                "hints": hints,
            },
            save=save,
        ),
        as_json=json,
    )
