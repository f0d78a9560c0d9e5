"""`palmette models`: what can be had by name, and where it lies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.table import Table

from palmette.cli.output import console, human_size, print_json
from palmette.errors import ModelError, suggestion
from palmette.runtime.models.registry import KNOWN, cache_folder, cached, resolve


def pull(model: str) -> None:
    """Fetch it if need be, and say where it is."""
    console().print(str(resolve(model)), soft_wrap=True)


def path(model: str) -> Path:
    """Where it lies now; ModelError where it has to be pulled first. Fetches nothing."""
    here = Path(model).expanduser()
    if here.exists():
        return here
    if model in KNOWN:
        found = cached(model)
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        found = _in_hub_cache(model)
    else:
        raise ModelError(f"there is no model {model!r}", hint=suggestion(model, KNOWN))
    if found is None:
        raise ModelError(f"{model} is not in the cache", hint=f"fetch it: palmette models pull {model}")
    return found


def known_models() -> list[dict[str, Any]]:
    """Every model that has a name here: what it is, its size in bytes, and its path, None where it is not cached."""
    return [
        {"name": model.name, "about": model.about, "size": model.size, "path": cached(model.name)}
        for model in KNOWN.values()
    ]


def show(*, as_json: bool) -> None:
    """Print the known models."""
    rows = known_models()
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("model", "what", "size", "in the cache"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["about"], human_size(row["size"]), "yes" if row["path"] else "no")
    console().print(table)
    where = f"The cache is {cache_folder()}; for a model's file: palmette models path MODEL"
    console().print(where, style="dim", soft_wrap=True)


def _in_hub_cache(name: str) -> Path | None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
