"""From `FILE.py[:function]` and `k=v` words to a program and its arguments."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import typing
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from palmette.cli.app import TARGET
from palmette.errors import suggestion
from palmette.interpreter.program import Program


def split_target(target: str) -> tuple[Path, str | None]:
    """`"a/b.py:qa"` as (path, function name or None). A wrong path is a usage error."""
    file, colon, name = target.rpartition(":")
    if not colon or not file.endswith(".py"):
        file, name = target, ""
    path = Path(file)
    if path.suffix != ".py":
        raise typer.BadParameter(f"{target!r} is not FILE.py or FILE.py:FUNCTION", param_hint=TARGET)
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {file!r}", param_hint=TARGET)
    return path.resolve(), name or None


def load_module(path: Path) -> ModuleType:
    """Import the file as `python FILE.py` would see it (its folder is where imports look first), but with its own
    name instead of `__main__`, so that what is under `if __name__ == "__main__":` does not run."""
    if not sys.flags.safe_path and str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = f"palmette_program_{path.stem}"  # never a name that something else imports
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look their module up here
    spec.loader.exec_module(module)
    return module


def choose_function(module: ModuleType, path: Path, name: str | None) -> Program:
    """The function of that name; without a name the file's only one, or the one called as the file is, or `main`."""
    functions = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    if not functions:
        raise typer.BadParameter(f"{path.name} defines no @palmette.function", param_hint=TARGET)
    if name is not None:
        if name not in functions:
            raise typer.BadParameter(
                f"{path.name} has no @palmette.function {name!r}; {suggestion(name, functions)}", param_hint=TARGET
            )
        return functions[name]
    if len(functions) == 1:
        return next(iter(functions.values()))
    for default in (path.stem, "main"):
        if default in functions:
            return functions[default]
    raise typer.BadParameter(
        f"{path.name} has several functions; say which: " + ", ".join(f"{path.name}:{key}" for key in functions),
        param_hint=TARGET,
    )


def read_arguments(function: Program, pairs: Iterable[str]) -> dict[str, Any]:
    """`["n=3", "topic=tea"]` as keyword arguments of the function, each of the type that its parameter is annotated
    with. Without an annotation: the JSON value that the text spells, else the text."""
    parameters = function.parameters.parameters
    hints = _type_hints(function.body)
    kinds = {parameter.kind for parameter in parameters.values()}
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = {key for key, parameter in parameters.items() if parameter.kind not in variadic}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--arg")
        if key not in named and not takes_any:
            hint = suggestion(key, named) if named else "it has none"
            raise typer.BadParameter(f"the program has no argument {key!r}; {hint}", param_hint="--arg")
        arguments[key] = read_value(key, text, hints.get(key, inspect.Parameter.empty))
    given = arguments.keys() | function.bound.keys()
    missing = [key for key in parameters if key in named - given and parameters[key].default is inspect.Parameter.empty]
    if missing:
        raise typer.BadParameter(
            "the program needs " + " ".join(f"--arg {key}=..." for key in missing), param_hint="--arg"
        )
    return arguments


def read_value(key: str, text: str, annotation: Any = inspect.Parameter.empty) -> Any:
    """The text as a value of the annotated type: itself for str, else as JSON, else by pydantic's rules for words
    (so `3`, `true`, `[1, 2]`, `red` for an Enum, `2026-01-31` for a date)."""
    if annotation is str:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if annotation is inspect.Parameter.empty or annotation is Any:
        return value
    from pydantic import TypeAdapter, ValidationError  # here, since most programs take words as they are

    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    try:
        return adapter.validate_python(value)
    except ValidationError as first:
        try:
            return adapter.validate_python(text)
        except ValidationError:
            problem = first.errors()[0]["msg"]
            raise typer.BadParameter(f"{key}={text}: {problem}", param_hint="--arg") from None


def _type_hints(body: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(body)
    except Exception:  # an annotation that cannot be evaluated: the text is then read without it
        return {}
