"""The commands and their help. What each does is in the module of its name, imported only when it runs."""

from __future__ import annotations

from typing import Annotated

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
