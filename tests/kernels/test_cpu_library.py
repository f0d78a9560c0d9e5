"""The shared library: found or missing in words, levels, and teams of threads that outlive what is done to them."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest
import torch

from palmette.kernels.cpu.library import LibraryMissing, Team, load
from palmette.kernels.cpu.linear import Weight, linear

try:
    LEVELS = load().levels
except LibraryMissing as missing:
    pytest.skip(f"no C++ kernels: {missing}", allow_module_level=True)

pytestmark = pytest.mark.tiny


def test_portable_runs_everywhere_and_the_best_level_is_the_default():
    assert LEVELS[0] == "portable"
    if "PALMETTE_CPU" not in os.environ:
        assert load().level == LEVELS[-1] == Team(load(), 1).level


def test_levels_that_are_not_there_or_do_not_run_here_are_refused():
    with pytest.raises(ValueError, match="no level sse9"):
        Team(load(), 1, "sse9")
    for name in {"avx2", "avx512", "avx512bf16"} - set(LEVELS):
        with pytest.raises(ValueError, match=f"{name}"):
            Team(load(), 1, name)
    with pytest.raises(ValueError, match="1 to 1024 threads"):
        Team(load(), 0)


def test_the_environment_forces_a_level(monkeypatch):
    monkeypatch.setenv("PALMETTE_CPU", "portable")
    assert load().level == Team(load(), 1).level == "portable"
    assert Team(load(), 1, LEVELS[-1]).level == LEVELS[-1]
    monkeypatch.setenv("PALMETTE_CPU", "sse9")
    with pytest.raises(ValueError, match="no level sse9 in this build"):
        _ = load().level
    with pytest.raises(ValueError, match="no level sse9"):
        Team(load(), 1)


def test_a_library_that_is_not_there_or_not_one_is_missing_in_words(monkeypatch, tmp_path):
    fresh = load.__wrapped__
    monkeypatch.setenv("PALMETTE_CPU_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(LibraryMissing, match="is not a file"):
        fresh()
    (tmp_path / "none.so").write_text("not a library")
    with pytest.raises(LibraryMissing, match="does not load"):
        fresh()


def test_a_team_serves_several_threads_in_turn():
    team = Team(load(), 3)
    weight = Weight(team, [torch.randn(64, 96)])
    x = torch.randn(20, 96)
    expected = linear(team, x, weight)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(i for i in range(100) if not torch.equal(linear(team, x, weight), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_teams_and_weights_are_given_back():
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted in /proc")
    before = threads()
    team = Team(load(), 4)
    weight = Weight(team, [torch.randn(8, 8)])
    assert weight.bytes >= 8 * 8 * 4
    assert threads() == before + 3
    del team, weight
    gc.collect()
    assert threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_starts_the_threads_of_its_own():
    team = Team(load(), 2)
    weight = Weight(team, [torch.randn(64, 96)])
    x = np.ones((5, 96), np.float32)
    expected = linear(team, x, weight)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(linear(team, x, weight), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(linear(team, x, weight), expected)


def test_the_interpreter_is_free_while_the_library_works():
    team = Team(load(), 1, "portable")
    weight = Weight(team, [torch.randn(512, 1024)])
    x = np.ones((64, 1024), np.float32)
    moments: list[int] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            moments.append(1)
            done.wait(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    for _ in range(10):
        linear(team, x, weight)
    seen = len(moments)
    done.set()
    counter.join()
    assert seen > 5
