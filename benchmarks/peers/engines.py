"""The engines: in which forms each holds the weights, how its worker is started, what installs it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from palmette.errors import ArgumentError, suggestion

FOLDER = Path("~/.cache/palmette/peers")
# Files that `install` makes of the model's own for engines that read no other form.
MADE = {"q8_0": "Q8_0", "bf16": "BF16", "f16": "F16"}


class Place(NamedTuple):
    """Where things are. folder: of the environments; model: the GGUF file that all weights come from."""

    folder: Path
    model: Path

    def python(self, environment: str) -> Path:
        return self.folder / environment / "bin" / "python"

    @property
    def llama(self) -> Path:
        return self.folder / "llama.cpp" / "build" / "bin"

    def weights(self, form: str) -> Path:
        if form == "stored":
            return self.model
        if form == "folder":
            return self.folder / "weights" / self.model.stem
        return self.folder / "weights" / f"{self.model.stem}.{MADE[form]}.gguf"


class Kind(NamedTuple):
    """forms: the names of the forms it can run, and of each the form of the file that it reads. usual: which of them
    run where none is named. worker: module and arguments. needs: the files without which it is not installed."""

    title: str
    forms: Mapping[str, str]
    usual: Sequence[str]
    worker: Callable[[Place, str], list[str]]
    needs: Callable[[Place], Sequence[Path]]


class Contender(NamedTuple):
    """An engine in one form, as it runs."""

    kind: str
    form: str

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.form}"

    def command(self, place: Place, threads: int) -> list[str]:
        return [*KINDS[self.kind].worker(place, self.form), str(threads)]

    def missing(self, place: Place) -> list[Path]:
        kind = KINDS[self.kind]
        return [path for path in (*kind.needs(place), place.weights(kind.forms[self.form])) if not path.exists()]


def _ours(place: Place, form: str) -> list[str]:
    return [sys.executable, "-P", "-m", "workers.palmette_worker", str(place.model), form]


def _llama(place: Place, form: str) -> list[str]:
    server = str(place.llama / "llama-server")
    return [sys.executable, "-P", "-m", "workers.llama_worker", server, str(place.weights(form))]


def _openvino(place: Place, form: str) -> list[str]:
    file = str(place.weights(KINDS["openvino"].forms[form]))
    return [str(place.python("openvino")), "-P", "-m", "workers.openvino_worker", file, form]


def _vllm(place: Place, form: str) -> list[str]:
    return [str(place.python("vllm")), "-P", "-m", "workers.vllm_worker", str(place.weights("folder")), form]


def _transformers(place: Place, form: str) -> list[str]:
    file = str(place.weights("stored"))
    return [sys.executable, "-P", "-m", "workers.transformers_worker", file, form]


KINDS = {
    "palmette": Kind(
        "palmette, in process",
        {"stored": "stored", "q8_0": "stored", "q4_0": "stored", "q4_1": "stored", "bf16": "stored", "fp32": "stored"},
        ("stored", "q8_0", "bf16"),
        _ours,
        lambda place: [],
    ),
    "llama.cpp": Kind(
        "llama.cpp's server",
        {"stored": "stored", "q8_0": "q8_0", "bf16": "bf16"},
        ("stored", "q8_0"),
        _llama,
        lambda place: [place.llama / "llama-server"],
    ),
    "openvino": Kind(
        "OpenVINO GenAI, in process",
        {"stored": "stored", "q8_0": "q8_0", "bf16": "f16", "f32": "f16"},
        ("q8_0", "bf16"),
        _openvino,
        lambda place: [place.python("openvino")],
    ),
    "vllm": Kind(
        "vLLM's CPU build, in process",
        {"bf16": "folder", "f32": "folder"},
        ("bf16",),
        _vllm,
        lambda place: [place.python("vllm")],
    ),
    "transformers": Kind(
        "transformers, in process",
        {"bf16": "stored", "f32": "stored"},
        ("bf16",),
        _transformers,
        lambda place: [] if find_spec("transformers") else [Path(sys.prefix, "lib", "transformers")],
    ),
}
PEERS = [kind for kind in KINDS if kind != "palmette"]


def contenders(words: str) -> list[Contender]:
    """From a list with commas: "openvino" (its usual forms) or "openvino:bf16". ArgumentError for others."""
    found: list[Contender] = []
    for word in words.split(","):
        kind, _, form = word.strip().partition(":")
        if kind not in KINDS:
            raise ArgumentError(f"there is no engine {kind!r}", hint=suggestion(kind, KINDS))
        if form and form not in KINDS[kind].forms:
            raise ArgumentError(f"{kind} has no form {form!r}", hint=suggestion(form, KINDS[kind].forms))
        found += [Contender(kind, each) for each in ([form] if form else KINDS[kind].usual)]
    return list(dict.fromkeys(found))


def install_hint(contender: Contender, place: Place) -> str:
    """The command that makes what is missing."""
    folder = "" if place.folder == FOLDER.expanduser() else f" --folder {place.folder}"
    made = [path for path in contender.missing(place) if path.parent.name == "weights" and path.suffix == ".gguf"]
    kinds = dict.fromkeys([*(["llama.cpp"] if made else []), contender.kind])
    return f"python -m palmette.benchmarks.peers install {' '.join(kinds)}{folder}"


def environment(threads: int) -> dict[str, str]:
    """Of a worker: nothing of the driver's Python, no downloads, so many threads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    here = Path(__file__).resolve().parent
    return {**kept, **offline, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(here)}


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ArgumentError(f"{name} is not installed", hint=f"install it, e.g. apt-get install {name}")
    return found
