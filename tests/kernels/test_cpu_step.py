"""Whole tiny models through the C++ tape against the same tape on the reference kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from palmette.kernels.cpu.library import LibraryMissing, Team, load
from palmette.kernels.cpu.linear import Weight
from palmette.kernels.cpu.step import Step
from palmette.kernels.dispatch import Kernels, Reference
from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.kernels.tape import KV, Add, Gate, Linear, LinearAdd, Norm, Op, Tape
from palmette.runtime.models.architecture import Architecture, LayerKind, Rope
from palmette.runtime.models.lower import lower
from palmette.runtime.models.tiny import random_weights, tiny_architecture

try:
    LEVELS = load().levels
except LibraryMissing as missing:
    pytest.skip(f"no C++ kernels: {missing}", allow_module_level=True)

pytestmark = pytest.mark.tiny

SLOTS = 200
GEMMA: dict[str, Any] = {
    "layers": tuple(LayerKind(Rope(1e4 if i % 2 else 1e6, 16), 0 if i % 2 else 20) for i in range(4)),
    "head_dim": 16,
    "qk_norm": True,
    "post_norms": True,
    "norm_offset": 1.0,
    "embed_scale": 32**0.5,
    "activation": "gelu_tanh",
    "tied": True,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "tied": True},
    "wide-heads": {"heads": 3, "kv_heads": 1, "head_dim": 64, "layers": (LayerKind(Rope(1e4, 64)),) * 2},
    "qwen3": {"head_dim": 16, "qk_norm": True, "layers": (LayerKind(Rope(1e6, 16)),) * 2, "hidden": 40},
    "phi-partial-rope": {"head_dim": 16, "layers": (LayerKind(Rope(1e4, 4)),) * 2, "activation": "gelu"},
    "mistral-windows": {"layers": (LayerKind(Rope(1e4, 8), 16),) * 3, "intermediate": 50},
    "gemma2": {**GEMMA, "attention_softcap": 5.0, "logit_softcap": 3.0, "attention_scale": 0.2},
    "gemma3": GEMMA,
}


class Pair(NamedTuple):
    """A model on the reference kernels and in C++."""

    arch: Architecture
    reference: Tape
    step: Step


@pytest.fixture(scope="module", params=LEVELS)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    made = Team(load(), 2, request.param)
    yield made
    made.close()


def lowered(arch: Architecture, kernels: Kernels) -> Tape:
    weights = random_weights(arch)
    return lower(arch, lambda name, layer: weights[name, layer], kernels, torch.device("cpu"))


class Packing(Reference):
    """Linears packed for C++; not `apart`: gate and up as one matrix, as q, k and v."""

    def __init__(self, team: Team, apart: bool = True) -> None:
        self._team, self._apart = team, apart

    def pack_linear(self, parts: Sequence[Any], bias: torch.Tensor | None = None) -> Any:
        return Weight(self._team, parts if self._apart else [torch.cat(list(parts))], bias)


class TensorStep(Step):
    """Its logits as tensors, which is what these tests compare."""

    def run(self, batch: RaggedBatch, kv: Any, out: Any = None) -> Any:
        return torch.from_numpy(super().run(batch, kv, out))


def pair(team: Team, name: str, apart: bool = True) -> Pair:
    arch = replace(tiny_architecture(), **FAMILIES[name])
    return Pair(arch, lowered(arch, Reference()), TensorStep(team, lowered(arch, Packing(team, apart))))


def new_kv(arch: Architecture, dtype: torch.dtype = torch.float32) -> KV:
    shape = (len(arch.layers), SLOTS, arch.kv_heads, arch.head_dim)
    return KV(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))


def ids(count: int, seed: int = 1) -> list[int]:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def scattered(count: int) -> list[int]:
    return torch.randperm(SLOTS, generator=torch.Generator().manual_seed(2)).tolist()[:count]


def part(tokens: Sequence[int], slots: Sequence[int], start: int, end: int) -> Segment:
    return Segment(tokens[start:end], start, slots[:start], slots[start:end], range(end - start))


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_the_reference(team: Team, name: str, apart: bool) -> None:
    """Two texts together, in chunks; then one token of each. `apart`: gate and up in one pass."""
    arch, tape, step = pair(team, name, apart)
    first, second = ids(90), ids(40, 3)
    slots = scattered(130)
    kvs = new_kv(arch), new_kv(arch)
    mine, others = slots[:90], slots[90:]
    for batch in (
        RaggedBatch.of([part(first, mine, 0, 60), part(second, others, 0, 39)]),
        RaggedBatch.of([part(first, mine, 60, 89)]),
        RaggedBatch.of([part(first, mine, 89, 90), part(second, others, 39, 40)]),
    ):
        expected = Reference().compile(tape)(batch, kvs[0])
        got = step.run(batch, kvs[1])
        assert expected.std() > 0.1
        scale = float(expected.abs().max())
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * scale)
        for ours, theirs in zip((kvs[1].k, kvs[1].v), (kvs[0].k, kvs[0].v), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "wide-heads", "gemma2"])
def test_tokens_have_the_same_bits_in_any_chunk_batch_and_team(team: Team, name: str, dtype: torch.dtype) -> None:
    arch, _, step = pair(team, name)
    text, slots = ids(150), scattered(150)
    whole = step.run(RaggedBatch.of([part(text, slots, 0, 150)]), new_kv(arch, dtype))
    for size in (1, 7, 64):
        kv = new_kv(arch, dtype)
        for at in range(0, 150, size):
            got = step.run(RaggedBatch.of([part(text, slots, at, min(at + size, 150))]), kv)
            assert torch.equal(got, whole[at : at + size]), (size, at)
    # Two halves of one text and branches off it at once, the K and V of what comes before being there.
    kv = new_kv(arch, dtype)
    step.run(RaggedBatch.of([part(text, slots, 0, 149)]), kv)
    free = [s for s in range(SLOTS) if s not in slots]
    branches = [Segment([text[149]], 149, slots[:149], [free.pop()]) for _ in range(12)]
    for share in (True, False):
        step.share(share)
        got = step.run(RaggedBatch.of([*branches, part(ids(9, 5), free, 0, 9)]), kv)
        assert torch.equal(got[:12], whole[149:].expand(12, -1))
    for threads in (1, 3):
        other = Team(team.library, threads, team.level)
        again = TensorStep(other, lowered(arch, Packing(other)))
        assert torch.equal(again.run(RaggedBatch.of([part(text, slots, 0, 150)]), new_kv(arch, dtype)), whole)
        other.close()


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_few_rows_have_the_same_bits_on_any_team(team: Team, name: str, apart: bool) -> None:
    """Up to four rows each thread norms and rotates by itself (tape_phases.h); five are shared out."""
    arch, _, step = pair(team, name, apart)
    one = Team(team.library, 1, team.level)
    three = Team(team.library, 3, team.level)
    others = [TensorStep(each, lowered(arch, Packing(each, apart))) for each in (one, three)]
    text, slots = ids(24), scattered(24)
    for rows in (1, 4, 5):
        kvs = [new_kv(arch, torch.bfloat16) for _ in range(3)]
        for at in range(0, 24, rows):
            batch = RaggedBatch.of([part(text, slots, at, min(at + rows, 24))])
            got = [each.run(batch, kv) for each, kv in zip((step, *others), kvs, strict=True)]
            assert torch.equal(got[0], got[1]), (rows, at)
            assert torch.equal(got[0], got[2]), (rows, at)
        assert torch.equal(kvs[0].k, kvs[1].k)
        assert torch.equal(kvs[0].v, kvs[2].v)
    one.close()
    three.close()


@pytest.mark.parametrize("kind", ["added", "read", "changed"])
def test_nobody_goes_ahead_of_who_still_reads(team: Team, kind: str) -> None:
    """Tapes whose next matrix writes what threads norm, or reads or changes a norm once more: no model's."""
    arch = replace(tiny_architecture(), layers=(LayerKind(Rope(1e4, 8)),), hidden=256, tied=True)
    generator = torch.Generator().manual_seed(4)

    def tape(kernels: Kernels) -> Tape:
        generator.manual_seed(4)

        def weight(n: int) -> Any:
            return kernels.pack_linear([torch.randn(n, 256, generator=generator) / 16])

        model = lowered(arch, kernels)
        norm = Norm(torch.ones(256), 1e-5, "x", "h")
        again: list[Op] = []
        for _ in range(12):
            if kind == "added":
                again += [norm, LinearAdd(weight(256), "h"), LinearAdd(weight(256), "h")]
            elif kind == "read":
                again += [norm, Linear(weight(512), "h", "g"), Gate("silu"), LinearAdd(weight(256), "a")]
                again += [LinearAdd(weight(256), "h")]
            else:
                again += [norm, Linear(weight(256), "h", "a"), Norm(norm.weight, 1e-5, "a", "a"), Add("a")]
                again += [norm, Norm(norm.weight, 1e-5, "h", "h"), Add("h"), LinearAdd(weight(256), "h")]
        return (*model[:-3], *again, *model[-3:])

    expected = tape(Reference())
    three = Team(team.library, 3, team.level)
    steps = [TensorStep(each, tape(Packing(each))) for each in (team, three)]
    for rows in (1, 3, 6):
        batch = RaggedBatch.of([part(ids(rows), list(range(rows)), 0, rows)])
        kvs = [new_kv(arch) for _ in range(3)]
        wanted = Reference().compile(expected)(batch, kvs[0])
        first = steps[0].run(batch, kvs[1])
        torch.testing.assert_close(first, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
        for _ in range(10):
            for step in steps:
                assert torch.equal(step.run(batch, kvs[2]), first)
    three.close()


def test_a_cache_of_bytes_stays_near(team: Team) -> None:
    class Bytes(NamedTuple):
        k: torch.Tensor
        v: torch.Tensor
        k_scale: torch.Tensor
        v_scale: torch.Tensor

    arch, tape, step = pair(team, "wide-heads")
    shape = (2, SLOTS, arch.kv_heads, arch.head_dim)
    kv = Bytes(*(torch.zeros(shape, dtype=torch.int8) for _ in range(2)), *(torch.zeros(shape[:3]) for _ in range(2)))
    text, slots = ids(100), scattered(100)
    expected = Reference().compile(tape)(RaggedBatch.of([part(text, slots, 0, 100)]), new_kv(arch))
    got = [step.run(RaggedBatch.of([part(text, slots, a, b)]), kv) for a, b in ((0, 70), (70, 99), (99, 100))]
    error = (torch.cat(got) - expected).std() / expected.std()
    assert 0 < error < 0.03


def test_only_wanted_rows_reach_the_head(team: Team) -> None:
    arch, _, step = pair(team, "llama")
    text, slots = ids(30), list(range(30))
    every = step.run(RaggedBatch.of([part(text, slots, 0, 30)]), new_kv(arch))
    few = step.run(RaggedBatch.of([Segment(text, 0, [], slots, [3, 29, 3])]), new_kv(arch))
    assert torch.equal(few, every[[3, 29, 3]])
    kv = new_kv(arch)
    assert step.run(RaggedBatch.of([Segment(text, 0, [], slots, [])]), kv).shape == (0, arch.vocab)
    assert kv.k[:, :30].abs().sum(-1).all()  # no logits, but keys
    assert step.run(RaggedBatch.of([]), kv).shape == (0, arch.vocab)


def test_what_does_not_fit_is_refused(team: Team) -> None:
    arch, _, step = pair(team, "llama")
    kv = new_kv(arch)
    for segment, words in (
        (Segment([0], 0, [], [SLOTS]), "slot"),
        (Segment([arch.vocab], 0, [], [0]), "token that the embedding lacks"),
        (Segment([0], 0, [], [0], [1]), "row that is not there"),
    ):
        with pytest.raises(ValueError, match=words):
            step.run(RaggedBatch.of([segment]), kv)
    good = RaggedBatch.of([Segment([0], 0, [], [0])])
    with pytest.raises(ValueError, match="another shape"):
        step.run(good, KV(kv.k[:1].contiguous(), kv.v[:1].contiguous()))
    with pytest.raises(ValueError, match="a cache holds"):
        step.run(good, KV(kv.k.double(), kv.v.double()))
    packed = lowered(arch, Packing(team))
    with pytest.raises(ValueError, match="ends with its logits"):
        Step(team, packed[:-2] + packed[-1:-1] + (packed[-2],))  # the head is left out
    with pytest.raises(ValueError, match="the weight's k is not the width"):
        Step(team, tuple(op for op in packed if type(op).__name__ != "Gate"))
    with pytest.raises(ValueError, match="no operation str"):
        Step(team, ("what",))
