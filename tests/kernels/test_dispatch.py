"""Which kernels a device gets, and what they promise."""

from __future__ import annotations

import shutil

import pytest
import torch

from palmette.errors import ArgumentError
from palmette.kernels.cpu import library
from palmette.kernels.dispatch import choose, promise

pytestmark = pytest.mark.tiny


def test_the_native_kernels_were_built_where_there_is_a_compiler() -> None:
    """Without them palmette works, and nobody would notice that a build is broken."""
    if shutil.which("g++") or shutil.which("clang++"):
        assert library.load().level


def test_a_processor_gets_the_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("palmette.kernels.cpu.native_kernels")
    monkeypatch.delenv("PALMETTE_KERNELS", raising=False)
    try:
        level = library.load().level
    except library.LibraryMissing:
        pytest.skip("no C++ compiler was there when palmette was installed")
    choice = choose("cpu")
    assert choice.kernels.name == f"cpu {level}"
    assert level in choice.reason
    assert choice.cost == ""
    assert promise(choice.kernels, "cpu", torch.bfloat16).same_bits


def test_the_environment_names_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALMETTE_KERNELS", "reference")
    choice = choose("cpu")
    assert choice.kernels.name == "reference"
    assert "PALMETTE_KERNELS" in choice.reason
    assert promise(choice.kernels, "cpu", torch.float32).same_bits
    assert not promise(choice.kernels, "cpu", torch.bfloat16).same_bits
    assert not promise(choice.kernels, "cuda", torch.float32).same_bits
    monkeypatch.setenv("PALMETTE_KERNELS", "referense")
    with pytest.raises(ArgumentError, match="no such kernels") as caught:
        choose("cpu")
    assert "reference" in str(caught.value.hint)


def test_a_level_that_cannot_run_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PALMETTE_KERNELS", raising=False)
    monkeypatch.setenv("PALMETTE_CPU", "avx1024")
    if choose_fails_without_library():
        pytest.skip("no C++ compiler was there when palmette was installed")
    with pytest.raises(ArgumentError, match="avx1024") as caught:
        choose("cpu")
    assert "PALMETTE_CPU" in str(caught.value.hint)


def choose_fails_without_library() -> bool:
    try:
        library.load()
    except library.LibraryMissing:
        return True
    return False


def test_without_a_library_the_reference_runs_and_says_what_it_costs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.delenv("PALMETTE_KERNELS", raising=False)
    monkeypatch.setenv("PALMETTE_CPU_LIBRARY", f"{tmp_path}/none.so")
    library.load.cache_clear()
    try:
        choice = choose("cpu")
        assert choice.kernels.name == "reference"
        assert "none.so" in choice.reason
        assert "times as long" in choice.cost
        monkeypatch.setenv("PALMETTE_KERNELS", "cpu")
        with pytest.raises(ArgumentError, match=r"none\.so"):
            choose("cpu")
    finally:
        library.load.cache_clear()
