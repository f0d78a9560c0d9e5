"""`palmette doctor`: what there is on this machine and what was chosen because of it."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from rich.table import Table

from palmette.cli.app import DEFAULT_MODEL
from palmette.cli.models import known_models
from palmette.cli.output import console, human_size, print_json
from palmette.runtime.models.registry import cache_folder, cached

if TYPE_CHECKING:
    from palmette.kernels.dispatch import Promise

# Instruction sets that matter to kernels, by Linux's names for them.
CPU_FLAGS = (
    "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "asimd", "bf16", "i8mm",
)  # fmt: skip
LIBRARIES = ("tokenizers", "transformers", "llguidance", "gguf", "safetensors", "numpy")


def report(model: str | None, *, as_json: bool) -> None:
    """Print the report. A model is loaded for it, to tell its size and that of its KV cache: `model`, or the small
    default one where it is in the cache."""
    findings = examine(model)
    if as_json:
        print_json(findings)
        return
    out = console()
    for section, rows in findings.items():
        table = Table(title=section, title_justify="left", title_style="bold", show_header=False, box=None)
        table.add_column(style="cyan")
        table.add_column(overflow="fold")
        for key, value in rows.items():
            table.add_row(key, _words(value))
        out.print(table)
        out.print()


def examine(model: str | None = None) -> dict[str, dict[str, Any]]:
    """The findings by section; everything is plain data."""
    findings = {
        "palmette": {"version": version("palmette"), "path": os.path.dirname(_palmette_file())},
        **machine(),
        "kernels": kernels(),
        "same tokens": same_tokens(),
        "libraries": {name: library_version(name) for name in LIBRARIES},
        "models": models(),
    }
    if model is None and cached(DEFAULT_MODEL):
        model = DEFAULT_MODEL
    if model is not None:
        findings["model"] = loaded_model(model)
    return findings


def machine() -> dict[str, dict[str, Any]]:
    """Python, torch and the processor."""
    return {
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "platform": platform.platform(),
        },
        "torch": torch_build(),
        "processor": {
            "name": cpu_name(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "machine": platform.machine(),
            "flags": cpu_flags(),
            "memory": memory(),
        },
    }


def torch_build() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def kernels() -> dict[str, str]:
    """Which kernels each device of this machine gets, and why."""
    import torch

    from palmette.kernels.dispatch import choose

    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    choices = {device: choose(device) for device in devices}
    return {device: "; ".join(filter(None, (choice.reason, choice.cost))) for device, choice in choices.items()}


def same_tokens() -> dict[str, str]:
    """Of each device and dtype whether results are bit-identical in every batch and schedule, and why."""
    import torch

    from palmette.kernels.dispatch import choose, promise

    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    told = {
        f"{device} {name}": _promised(promise(choose(device).kernels, device, dtype))
        for device in devices
        for name, dtype in dtypes.items()
    }
    return {"default": "cpu; weights as they are stored where the kernels read that, else in fp32", **told}


def _promised(promise: Promise) -> str:
    level = "bit-identical in every batch and schedule" if promise.same_bits else "not promised"
    return f"{level}: {promise.reason}"


def cpu_flags() -> list[str]:
    """Which of CPU_FLAGS the processor has; [] where the system does not say (only Linux does)."""
    present = set(_cpu_line("flags", "Features").split())
    return [flag for flag in CPU_FLAGS if flag in present]


def cpu_name() -> str | None:
    """The processor's name; None where the system does not say."""
    return _cpu_line("model name") or None


def _cpu_line(*names: str) -> str:
    """What /proc/cpuinfo says of the first processor under one of these names."""
    try:
        with open("/proc/cpuinfo") as file:
            line = next((line for line in file if line.startswith(names)), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()


def memory() -> str | None:
    """The machine's main memory, for people."""
    try:
        return human_size(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return None


def library_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def models() -> dict[str, Any]:
    """The cache folder, and of each model with a name where it lies (None: not pulled)."""
    return {"cache": str(cache_folder()), "known": {row["name"]: row["path"] for row in known_models()}}


def loaded_model(name: str) -> dict[str, Any]:
    """What an engine with this model is like. Loads it."""
    import palmette

    start = time.perf_counter()
    with palmette.Engine(name) as engine:
        model = engine.model
        return {
            "name": name,
            "seconds_to_load": round(time.perf_counter() - start, 2),
            "architecture": model.arch.describe(),
            "layers": len(model.arch.layers),
            "context": model.max_context,
            "dtype": model.dtype,
            "weights": ", ".join(f"{count / 1e6:.1f} M in {form}" for form, count in model.forms.most_common()),
            "kv_dtype": model.kv_dtype,
            "kernels": model.kernel_reason,
            "same_tokens": _promised(model.promise),
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "kv_tokens": engine.kv_tokens,
            "kv_memory": human_size(engine.kv_tokens * model.kv_bytes_per_token),
            "faults": engine.check_integrity(),
        }


def _palmette_file() -> str:
    import palmette

    return str(palmette.__file__)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
