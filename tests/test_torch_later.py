"""torch comes in with its first use, and works with as many threads as were asked for before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def fresh(code, **environment):
    words = [sys.executable, "-c", "import sys\nfrom palmette import torch_later\n" + code]
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env={**kept, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_it_is_imported_when_something_of_it_is_used():
    code = """
print("torch" in sys.modules, torch_later.is_tensor(1), torch_later.dtype_name("float32"))
tensor = torch_later.torch.zeros(2)
print("torch" in sys.modules, torch_later.is_tensor(tensor), torch_later.dtype_name(tensor.dtype))
import torch
assert torch.zeros is torch_later.torch.zeros
"""
    assert fresh(code) == ["False", "False", "float32", "True", "True", "float32"]


@pytest.mark.parametrize("first", ["", "import torch\n"])
def test_threads_that_were_set_are_torchs_too(first):
    code = first + "torch_later.set_threads(3)\nprint(torch_later.thread_count(), torch_later.torch.get_num_threads())"
    assert fresh(code) == ["3", "3"]
    assert fresh(first + code, OMP_NUM_THREADS="1") == ["3", "3"]


def test_threads_that_were_set_are_those_of_a_torch_that_others_import():
    code = "torch_later.set_threads(3)\nimport torch\n"
    assert fresh(code + "print(torch_later.thread_count(), torch.get_num_threads())") == ["3", "3"]
    assert fresh(code + "torch_later.torch.zeros(1); print(torch.get_num_threads())") == ["3"]
    # What is said later counts, by whomever.
    code += "torch_later.torch.zeros(1); torch.set_num_threads(2); torch_later.torch.ones(1)\n"
    assert fresh(code + "print(torch_later.thread_count())") == ["2"]


def test_without_torch_there_are_as_many_threads_as_with_it():
    code = "print(torch_later.thread_count()); import torch; print(torch.get_num_threads(), torch_later.thread_count())"
    for environment in ({}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}):
        assert len(set(fresh(code, **environment))) == 1
