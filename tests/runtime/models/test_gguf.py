"""GGUF files: types, layouts, and what must be refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from palmette.errors import ModelError
from palmette.kernels.dispatch import choose
from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.runtime.models.architecture import parameters
from palmette.runtime.models.gguf_file import GgufFile
from palmette.runtime.models.gguf_model import tensor_name
from palmette.runtime.models.model import Model, load_model
from palmette.runtime.models.tiny import random_weights, tiny_architecture

pytestmark = pytest.mark.tiny

ARCH = tiny_architecture(vocab=258)


def pairs_side_by_side(weight, heads):
    """The layout that converters give Llama's q and k: the inverse of what loading undoes."""
    rest = weight.shape[1:]
    return weight.reshape(heads, 2, -1, *rest).swapaxes(1, 2).reshape(weight.shape)


def write(path, *, family="llama", arch=ARCH, rename=None, extra=(), types=None, metadata=None, drop=()):
    """A tiny model with a byte vocabulary; its float32 weights by (name, layer)."""
    from palmette.runtime.tokenizer_library import byte_alphabet

    weights = random_weights(arch)
    writer = gguf.GGUFWriter(str(path), family)
    writer.add_context_length(arch.max_context)
    writer.add_embedding_length(arch.hidden)
    writer.add_block_count(len(arch.layers))
    writer.add_feed_forward_length(arch.intermediate)
    writer.add_head_count(arch.heads)
    writer.add_head_count_kv(arch.kv_heads)
    writer.add_layer_norm_rms_eps(arch.norm_eps)
    by_byte = {b: c for c, b in byte_alphabet().items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([by_byte[b] for b in range(256)] + ["<|end|>", "<|user|>"])
    writer.add_token_types([1] * 256 + [3, 3])
    writer.add_token_merges([])
    writer.add_eos_token_id(256)
    for key, value in (metadata or {}).items():
        writer.add_uint32(key, value)
    for parameter in parameters(arch):
        name = tensor_name(parameter)
        if name in drop:
            continue
        data = weights[parameter.name, parameter.layer].numpy()
        if family == "llama" and parameter.name in ("q", "k"):
            data = pairs_side_by_side(data, arch.heads if parameter.name == "q" else arch.kv_heads)
        kind = (types or {}).get(name, gguf.GGMLQuantizationType.F32)
        raw = gguf.quantize(np.ascontiguousarray(data), kind)
        writer.add_tensor((rename or {}).get(name, name), raw, raw_dtype=kind)
    for name in extra:
        writer.add_tensor(name, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def logits(model, ids=(1, 2, 3, 4)):
    n = len(ids)
    batch = RaggedBatch.of([Segment(ids, 0, [], range(n), range(n))])
    return torch.as_tensor(model.forward(batch, model.new_kv(n)))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_file_gives_the_model_that_was_written(family, tmp_path):
    arch = ARCH if family == "llama" else tiny_architecture(vocab=258, qkv_bias=True, family="qwen2")
    weights = write(tmp_path / "m.gguf", family=family, arch=arch)
    model, tokenizer = load_model(tmp_path / "m.gguf")
    direct = Model(arch, lambda name, layer: weights[name, layer])
    assert torch.equal(logits(model), logits(direct))
    assert (model.dtype, model.max_context, model.vocab_width) == ("float32", arch.max_context, 258)
    assert tokenizer.encode("hi") == [104, 105]
    assert tokenizer.eos_ids == {256}
    assert tokenizer.encode_prompt("<|user|>hi<|end|>") == [257, 104, 105, 256]
    assert tokenizer.encode("<|end|>") == list(b"<|end|>")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"])
def test_every_type_reads_as_gguf_dequantises_it(kind, tmp_path):
    """Random bytes as weights, with scales that are sane numbers."""
    kind = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(0)
    raw = generator.integers(0, 256, (6, 512 // block * size), dtype=np.uint8)
    if kind.name == "F32":
        raw = generator.standard_normal((6, 512), dtype=np.float32).view(np.uint8)
    elif kind.name == "F16":
        raw = generator.standard_normal((6, 512)).astype(np.float16).view(np.uint8)
    elif kind.name == "BF16":
        raw = gguf.quantize(generator.standard_normal((6, 512), dtype=np.float32), kind).view(np.uint8)
    else:
        halves = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}[kind.name]
        blocks = raw.reshape(-1, size)
        for at in halves:
            blocks[:, at : at + 2] = generator.standard_normal((len(blocks), 1)).astype(np.float16).view(np.uint8)
    writer = gguf.GGUFWriter(str(tmp_path / "t.gguf"), "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "t.gguf")
    expected = gguf.dequantize(raw, kind)
    got = file.read("t")
    assert got.shape == (6, 512)
    assert got.dtype == {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind.name, torch.float32)
    assert np.isfinite(expected).all()
    assert np.array_equal(got.float().numpy(), expected.astype(np.float32))
    file.close()


def test_quantised_files_are_spread_out_and_plain_ones_kept(tmp_path):
    matrices = {tensor_name(p): p for p in parameters(ARCH) if len(p.shape) > 1}
    write(tmp_path / "q.gguf", types=dict.fromkeys(matrices, gguf.GGMLQuantizationType.Q8_0))
    assert load_model(tmp_path / "q.gguf")[0].dtype == "float32"
    write(tmp_path / "h.gguf", types=dict.fromkeys(matrices, gguf.GGMLQuantizationType.BF16))
    assert load_model(tmp_path / "h.gguf")[0].dtype == "bfloat16"


def test_without_output_matrix_the_embedding_is_it(tmp_path):
    weights = write(tmp_path / "m.gguf", drop=("output.weight",))
    model, _ = load_model(tmp_path / "m.gguf")
    direct = Model(
        tiny_architecture(vocab=258), lambda name, layer: weights["embed" if name == "head" else name, layer]
    )
    assert torch.equal(logits(model), logits(direct))


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    """Case ml-15."""
    path = tmp_path / "m.gguf"
    write(path, rename={"token_embd.weight": "token_embd.weight.q"})
    with pytest.raises(ModelError, match=r"missing token_embd\.weight; not used token_embd\.weight\.q"):
        load_model(path)
    write(path, extra=["foo.bias"])
    with pytest.raises(ModelError, match=r"not used foo\.bias"):
        load_model(path)
    write(path, family="unknown-arch")
    with pytest.raises(ModelError, match="'unknown-arch' is not known"):
        load_model(path)
    write(path, metadata={"llama.expert_count": 8})
    with pytest.raises(ModelError, match=r"llama\.expert_count is set"):
        load_model(path)


def test_an_unknown_type_is_refused_by_name(tmp_path):
    path = tmp_path / "m.gguf"
    write(path)
    data = path.read_bytes()
    at = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    path.write_bytes(data[:at] + (24).to_bytes(4, "little") + data[at + 4 :])  # type 24 is I8
    with pytest.raises(ModelError, match=r"output_norm\.weight is stored as I8"):
        load_model(path)


def test_damaged_files_are_told_from_models(tmp_path):
    path = tmp_path / "m.gguf"
    write(path)
    whole = path.read_bytes()
    for damaged in (b"", b"GGUF", b"PK\x03\x04" + whole[4:], whole[:300], whole[:-1000]):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="no usable GGUF file"):
            load_model(path)


def test_closing_replaces_no_interrupt(tmp_path):
    """Ctrl-C may come while arrays over the memory map are in use, which its traceback keeps alive."""
    path = tmp_path / "tiny.gguf"
    write(path)
    file = GgufFile(path)
    used = np.frombuffer(file._map, np.uint8)
    with pytest.raises(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt
        finally:
            file.close()
    assert used[0] == ord("G")


BLOCKS = {
    tensor_name(p): gguf.GGMLQuantizationType.Q8_0 if p.name in ("embed", "v") else gguf.GGMLQuantizationType.Q4_1
    for p in parameters(ARCH)
    if len(p.shape) == 2
}


@pytest.fixture
def native():
    if choose("cpu").kernels.name == "reference":
        pytest.skip("no C++ compiler was there when palmette was installed")


def test_blocks_stay_blocks_where_the_kernels_read_them(tmp_path, native, monkeypatch):
    write(tmp_path / "m.gguf", types=BLOCKS)
    model, _ = load_model(tmp_path / "m.gguf")
    assert set(model.forms) == {"Q4_1", "Q8_0", "float32"}
    assert (model.dtype, model.kv_dtype) == ("float32", "bfloat16")
    near = logits(model)
    spread, _ = load_model(tmp_path / "m.gguf", dtype="fp32")
    assert (set(spread.forms), spread.kv_dtype) == ({"float32"}, "float32")
    far = logits(spread)
    # The same weights; activations of 8 bits and KV of 16 cost something.
    assert not torch.equal(near, far)
    assert (near - far).abs().mean() < 0.05 * far.abs().mean()
    monkeypatch.setenv("PALMETTE_KERNELS", "reference")
    plain, _ = load_model(tmp_path / "m.gguf")
    assert set(plain.forms) == {"float32"}
    torch.testing.assert_close(logits(plain), far, rtol=1e-4, atol=1e-4)


COLD = """
import sys
import palmette as pt
engine = pt.Engine(sys.argv[1], kv_tokens=512, threads=1)
engine.generate("the c", max_tokens=3, temperature=0)
engine.generate("the c", max_tokens=3, temperature=1, top_p=0.9, regex="[a-z]+")
engine.score("the c", ["at", "ow"])
@pt.function
def ask(s):
    s += "the c" + pt.gen("x", max_tokens=2) + pt.select("y", ["no", "now"])
ask.run(backend=engine)
print(*(name for name in ("torch", "gguf", "pydantic", "jinja2", "jsonschema") if name in sys.modules))
print(len(engine.generate("the c", max_tokens=2, logprobs=1).logprobs))
engine.close()
"""


def test_blocks_run_without_what_is_slow_to_import(tmp_path, native):
    """What takes a second or more before the first token: torch comes only with what is torch's."""
    write(tmp_path / "m.gguf", types=BLOCKS)
    done = subprocess.run(
        [sys.executable, "-c", COLD, str(tmp_path / "m.gguf")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["", "2", ""]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells what a mapping holds")
def test_a_file_that_was_read_is_not_held_in_memory(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    names = [f"t{i}" for i in range(6)]
    for i, name in enumerate(names):
        raw = np.full((1 << 13, 34 * 32), i, np.uint8)  # 9 MB
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "m.gguf")

    def held():
        parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
        return sum(1024 * int(re.search(r"^Rss: +(\d+)", part, re.M)[1]) for part in parts if "m.gguf" in part)

    most, kept = 0, None
    for i, name in enumerate(names):
        blocks = file.read(name, ("Q8_0",))
        assert (blocks.data == i).all()
        kept = kept or blocks
        most = max(most, held())
    assert 8 << 20 < most < 32 << 20  # of 53
    file.close()
    assert held() < 1 << 20
    # What lies in the map can still be read.
    assert (kept.data == 0).all()


@pytest.mark.parametrize(("name", "error"), [("q8_0", 0.05), ("Q4_0", 0.5), ("q4_1", 0.5), ("bf16", 0.05)])
def test_weights_are_brought_into_the_form_that_is_asked_for(tmp_path, native, name, error):
    write(tmp_path / "m.gguf")
    plain, _ = load_model(tmp_path / "m.gguf")
    model, _ = load_model(tmp_path / "m.gguf", quantization=name)
    # The head keeps eight bits.
    assert set(model.forms) == ({"bfloat16"} if name == "bf16" else {name.upper(), "Q8_0", "float32"})
    assert model.kv_bytes_per_token == plain.kv_bytes_per_token // 2
    near, far = logits(model), logits(plain)
    assert 0 < (near - far).abs().mean() < error * far.abs().mean()
    assert model.fingerprint != plain.fingerprint


def test_weights_of_16_bits_run_as_they_are_stored(tmp_path, native):
    write(tmp_path / "w.gguf")
    wide = logits(load_model(tmp_path / "w.gguf")[0])
    matrices = [tensor_name(p) for p in parameters(ARCH) if len(p.shape) > 1]
    for kind, dtype in (("F16", "float16"), ("BF16", "bfloat16")):
        write(tmp_path / "h.gguf", types=dict.fromkeys(matrices, gguf.GGMLQuantizationType[kind]))
        model, _ = load_model(tmp_path / "h.gguf")
        # The kernels have no cache of fp16: bf16 takes as much.
        assert (model.dtype, model.kv_dtype) == (dtype, "bfloat16")
        assert (logits(model) - wide).abs().mean() < 0.05 * wide.abs().mean()
        again, _ = load_model(tmp_path / "w.gguf", dtype=getattr(torch, dtype))
        assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize(
    "settings", [{"dtype": torch.int8}, {"dtype": 3}, {"quantization": ["q8_0"]}, {"dtype": "q8_0"}]
)
def test_forms_that_are_none_are_refused(tmp_path, settings):
    write(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="cannot be held as"):
        load_model(tmp_path / "m.gguf", **settings)


def test_kernels_that_read_no_blocks_refuse_them(tmp_path, monkeypatch):
    write(tmp_path / "m.gguf")
    monkeypatch.setenv("PALMETTE_KERNELS", "reference")
    with pytest.raises(ModelError, match="read no blocks: reference"):
        load_model(tmp_path / "m.gguf", quantization="q8_0")
    with pytest.raises(ModelError, match="both dtype and quantization"):
        load_model(tmp_path / "m.gguf", dtype="fp32", quantization="q8_0")
    with pytest.raises(ModelError, match="held as 'q8'") as caught:
        load_model(tmp_path / "m.gguf", quantization="q8")
    assert "q8_0" in caught.value.hint
