"""Where numbers come from: enough about code, model and settings to make them again."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from palmette.benchmarks.subject import Subject

_ROOT = Path(__file__).resolve().parent.parent


def manifest(
    subject: Subject, machine: Mapping[str, Any], settings: Mapping[str, Any], command: Sequence[str]
) -> dict[str, Any]:
    """Plain data. machine: what is known of it. settings: of the engine, as far as they were given; the others are
    told too. command: the words of the command line."""
    from palmette.runtime.settings import EngineSettings

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "palmette": {"version": version("palmette"), **commit(_ROOT)},
        **machine,
        "model": model_facts(subject),
        "settings": asdict(EngineSettings(**settings)),
    }


def commit(root: Path) -> dict[str, Any]:
    """The commit of the code where it runs in a clone, and whether files differ from it; else nothing."""
    if not (root / ".git").exists():
        return {}
    try:
        head = _git(root, "rev-parse", "HEAD")
        return {"commit": head.strip(), "changed": bool(_git(root, "status", "--porcelain").strip())}
    except (OSError, subprocess.SubprocessError):
        return {}


def model_facts(subject: Subject) -> dict[str, Any]:
    """Of the model: name, architecture, fingerprints (weights and dtype; vocabulary), size of its files in bytes."""
    model, path = subject.model, subject.path
    return {
        "name": subject.name,
        "architecture": model.arch.describe(),
        "dtype": model.dtype,
        "kernels": model.kernel_reason,
        "fingerprint": model.fingerprint,
        "tokenizer": subject.tokenizer.fingerprint,
        "bytes": None if path is None else size(path),
    }


def size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout
