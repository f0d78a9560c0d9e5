"""The cache on disk as an engine uses it: warm after a restart, in another process, and after a kill at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from palmette.errors import ArgumentError
from palmette.runtime.engine import Engine
from palmette.runtime.models.model import Model
from palmette.runtime.models.tiny import random_weights, tiny_architecture
from palmette.runtime.tokenizer import Tokenizer

pytestmark = pytest.mark.tiny

Make = Callable[..., Engine]
SYSTEM = "You are terse, and you have read this long page of rules. " * 8
OPTIONS: dict[str, Any] = {"max_tokens": 8, "temperature": 0.7, "seed": 5, "logprobs": 2, "ignore_eos": True}

SCRIPT = """
import json, sys
from palmette.runtime.engine import Engine
from palmette.runtime.models.tiny import tiny_model

folder, rounds = sys.argv[1], int(sys.argv[2])
prompts = json.loads(sys.argv[3])
with Engine.from_model(*tiny_model(0), kv_tokens=4096, cache_dir=folder) as engine:
    for number in range(rounds):
        for prompt in prompts:
            out = engine.generate(prompt + (f" {number}" if number else ""), max_tokens=8, temperature=0, logprobs=1)
            print(json.dumps([out.usage.prompt_tokens, out.usage.cached_tokens, out.tokens, out.logprobs]), flush=True)
"""


def python(folder: Path, rounds: int, prompts: list[str]) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", SCRIPT, str(folder), str(rounds), json.dumps(prompts)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_a_restart_begins_warm_and_says_the_same(tiny_engine: Make, tmp_path: Path) -> None:
    cold = tiny_engine(cache_dir=tmp_path)
    first = cold.generate(SYSTEM, **OPTIONS)
    assert first.usage.cached_tokens == 0
    cold.close()
    warm = tiny_engine(cache_dir=tmp_path)
    again = warm.generate(SYSTEM, **OPTIONS)
    assert again.usage.cached_tokens > 0.95 * again.usage.prompt_tokens
    assert (again.tokens, again.logprobs) == (first.tokens, first.logprobs)
    # Also what goes on from it, and the answer itself as the next prompt.
    longer = warm.tokenizer.encode_prompt(SYSTEM) + list(first.tokens) + [65, 66]
    assert warm.generate(longer, **OPTIONS).usage.cached_tokens >= len(longer) - 3
    stats = warm.stats()
    assert stats["restored_tokens"] >= again.usage.cached_tokens
    assert stats["disk"]["hit_tokens"] > 0


@pytest.mark.parametrize("size", [1, 2, 15, 40, 64, 65, 100, 129, 460])
def test_prompts_of_any_length_are_found_again(tiny_engine: Make, tmp_path: Path, size: int) -> None:
    engine = tiny_engine(cache_dir=tmp_path)
    engine.generate(SYSTEM[:size], **OPTIONS)
    engine.close()
    engine = tiny_engine(cache_dir=tmp_path)
    # The last token of a prompt is computed always, for what comes next.
    assert engine.generate(SYSTEM[:size], **OPTIONS).usage.cached_tokens == size - 1


def test_other_weights_and_namespaces_find_nothing(tiny_engine: Make, tmp_path: Path) -> None:
    engine = tiny_engine(cache_dir=tmp_path)
    engine.generate(SYSTEM, namespace="mine", **OPTIONS)
    engine.close()
    for settings, namespace in (
        ({}, ""),
        ({}, "other"),
        ({"seed_model": 1}, "mine"),
        ({"model": {"layers": 3}}, "mine"),
    ):
        other = tiny_engine(cache_dir=tmp_path, **settings)
        assert other.generate(SYSTEM, namespace=namespace, **OPTIONS).usage.cached_tokens == 0
        other.close()
    same = tiny_engine(cache_dir=tmp_path)
    assert same.generate(SYSTEM, namespace="mine", **OPTIONS).usage.cached_tokens > 400


def engine_of(dtype: torch.dtype, folder: Path) -> Engine:
    """The same weights, which bf16 can hold, whatever they are computed in."""
    arch = tiny_architecture()
    weights = {name: weight.bfloat16() for name, weight in random_weights(arch).items()}
    model = Model(arch, lambda name, layer: weights[name, layer].to(dtype), dtype=dtype)
    return Engine.from_model(model, Tokenizer.of_bytes(width=260), kv_tokens=4096, cache_dir=folder)


@pytest.mark.parametrize("order", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_each_dtype_reads_its_own(tmp_path: Path, order: tuple[torch.dtype, torch.dtype]) -> None:
    first, last = {}, {}
    for dtype in order:
        with engine_of(dtype, tmp_path) as engine:
            out = first[dtype] = engine.generate(SYSTEM, **OPTIONS)
            assert out.usage.cached_tokens == 0
            assert engine.stats()["restored_tokens"] == 0
    assert first[torch.float32].logprobs != first[torch.bfloat16].logprobs
    for dtype in order:
        with engine_of(dtype, tmp_path) as engine:
            out = last[dtype] = engine.generate(SYSTEM, **OPTIONS)
            assert engine.stats()["restored_tokens"] >= out.usage.cached_tokens > 0.95 * out.usage.prompt_tokens
    # In bf16 a prompt that is computed in another batch may come out otherwise in its last bits.
    assert last[torch.float32].logprobs == first[torch.float32].logprobs


def test_the_folder_stays_within_its_bound(tiny_engine: Make, tmp_path: Path) -> None:
    bound = 200 * 1024
    engine = tiny_engine(cache_dir=tmp_path, cache_dir_bytes=bound)
    for number in range(12):
        engine.generate(f"{number} " + SYSTEM, **OPTIONS)
    engine.close()
    size = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert 0.3 * bound < size <= bound


def test_what_is_no_folder_is_refused(tiny_engine: Make, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ArgumentError, match="cache_dir"):
        tiny_engine(cache_dir=file)
    with pytest.raises(ArgumentError, match="cache=False"):
        tiny_engine(cache_dir=tmp_path, cache=False)
    with pytest.raises(TypeError, match="cache_dir"):
        tiny_engine(cache_dir=3)


def test_a_second_process_finds_what_the_first_computed(tmp_path: Path) -> None:
    answers = []
    for _ in range(2):
        process = python(tmp_path, 1, [SYSTEM])
        answers.append(json.loads(process.communicate(timeout=100)[0]))
        assert process.returncode == 0
    (_, cold, *first), (prompt, warm, *second) = answers
    assert cold == 0
    assert warm > 0.95 * prompt
    assert first == second


def test_a_kill_at_any_moment_spoils_nothing(tiny_engine: Make, tmp_path: Path) -> None:
    prompts = [f"{number}: {SYSTEM}" for number in range(4)]
    engine = tiny_engine()
    expected = [engine.generate(prompt, max_tokens=8, temperature=0, logprobs=1) for prompt in prompts]
    for delay in (0.0, 0.05, 0.15):
        process = python(tmp_path, 10_000, prompts)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        after = tiny_engine(cache_dir=tmp_path)
        for prompt, whole in zip(prompts, expected, strict=True):
            got = after.generate(prompt, max_tokens=8, temperature=0, logprobs=1)
            assert (got.tokens, got.logprobs) == (whole.tokens, whole.logprobs)
        after.close()
