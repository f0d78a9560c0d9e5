"""SmolLM2-135M-Instruct out of its GGUF file. tests/runtime/test_real_model.py compares it with transformers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from palmette.kernels.dispatch import choose
from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.runtime.models.model import load_model
from palmette.runtime.models.registry import resolve

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def ours():
    return load_model(resolve("smollm2-135m"))


def test_what_it_is(ours):
    model, tokenizer = ours
    assert (model.vocab_width, model.max_context, model.dtype) == (49152, 8192, "float32")
    assert model.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert tokenizer.width == 49152
    assert "30 layers" in model.arch.describe()


def test_it_knows_its_capital_in_any_schedule(ours):
    """Greedy, two prompts in one batch, whole and in chunks of 7, with the requests' slots interleaved."""
    model, tokenizer = ours
    prompts = [
        tokenizer.encode_prompt("<|im_start|>user\nCapital of France?<|im_end|>\n<|im_start|>assistant\n"),
        tokenizer.encode_prompt("One, two, three, four, five, six,"),
    ]
    texts = [greedy(model, prompts, chunk, new=6) for chunk in (1000, 7)]
    assert texts[0] == texts[1]
    france, numbers = (tokenizer.decode(tokens) for tokens in texts[0])
    assert "Paris" in france
    assert numbers.startswith(" seven")


def greedy(model, prompts, chunk, new):
    """The `new` greedy tokens that follow each prompt."""
    count = len(prompts)
    kv = model.new_kv(256)
    tokens, done = [list(prompt) for prompt in prompts], [0] * count
    while live := [i for i in range(count) if len(tokens[i]) < len(prompts[i]) + new]:
        segments = []
        for i in live:
            end = min(len(tokens[i]), done[i] + chunk)
            slots = [count * t + i for t in range(end)]
            segments.append(Segment(tokens[i][done[i] : end], done[i], slots[: done[i]], slots[done[i] :]))
            done[i] = end
        logits = torch.as_tensor(model.forward(RaggedBatch.of(segments), kv))
        for row, i in enumerate(live):
            if done[i] == len(tokens[i]):
                tokens[i].append(int(logits[row].argmax()))
    return [tokens[i][len(prompts[i]) :] for i in range(count)]


# Against fp32 weights on the plain kernels: how much more perplexing, and how far the distributions are apart.
LOSSES = {
    "stored": ({}, 1.005, 0.01),
    "bf16": ({"dtype": "bf16"}, 1.002, 0.001),
    "q8_0": ({"quantization": "q8_0"}, 1.02, 0.02),
}


def test_what_narrower_weights_cost(native, monkeypatch):
    """On the project's own guide. The file's blocks are Q4_1, so that only activations and KV are narrower "as stored";
    q8_0 rounds the weights once more."""
    text = (Path(__file__).parents[3] / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    monkeypatch.setenv("PALMETTE_KERNELS", "reference")
    model, tokenizer = load_model(resolve("smollm2-135m"), dtype="fp32")
    ids = tokenizer.encode(text)[:512]
    plain = logprobs(model, ids)
    monkeypatch.delenv("PALMETTE_KERNELS")
    same = logprobs(load_model(resolve("smollm2-135m"), dtype="fp32")[0], ids)
    assert (same - plain).abs().max() < 1e-3
    for settings, most, apart in LOSSES.values():
        narrow = logprobs(load_model(resolve("smollm2-135m"), **settings)[0], ids)
        assert perplexity(narrow, ids) < most * perplexity(plain, ids)
        assert 0 < (plain.exp() * (plain - narrow)).sum(-1).mean() < apart


@pytest.fixture
def native():
    if choose("cpu").kernels.name == "reference":
        pytest.skip("no C++ compiler was there when palmette was installed")


def logprobs(model, ids):
    """float64 [n, V] behind each token."""
    n = len(ids)
    batch = RaggedBatch.of([Segment(ids, 0, [], range(n), range(n))])
    return torch.log_softmax(torch.as_tensor(model.forward(batch, model.new_kv(n))).double(), -1)


def perplexity(table, ids):
    return math.exp(-table[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean())
