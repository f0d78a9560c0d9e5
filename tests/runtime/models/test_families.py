"""Every family that loads from safetensors, against transformers on small random weights."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

from palmette.errors import ModelError
from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.runtime.models.model import load_model

pytestmark = pytest.mark.tiny

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "llama-bias-tied": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama3": ("LlamaConfig", {"rope_parameters": LLAMA3, "head_dim": 16}),
    "linear": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "mistral": ("MistralConfig", {"sliding_window": 16, "head_dim": 8}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-windows": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 8, "head_dim": 16, "query_pre_attn_scalar": 24}),
}


def save(folder, name="llama", **changes):
    """A random model of the family in `folder`, with a byte tokenizer; the transformers model."""
    config_name, settings = FAMILIES[name]
    config = getattr(transformers, config_name)(**{**SMALL, **settings, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from palmette.runtime.tokenizer_library import byte_alphabet

    alphabet = {c: i for i, (c, _) in enumerate(sorted(byte_alphabet().items(), key=lambda item: item[1]))}
    tokenizer = Tokenizer(models.BPE(vocab={c: i for c, i in alphabet.items() if i < 90}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def ours(model, ids, chunks, slots=None):
    """Logits at every position, the prompt taken in chunks of these lengths."""
    kv = model.new_kv(160)
    slots = slots or list(range(len(ids)))
    done, rows = 0, []
    for n in chunks:
        part = Segment(ids[done : done + n], done, slots[:done], slots[done : done + n], range(n))
        rows.append(torch.as_tensor(model.forward(RaggedBatch.of([part]), kv)))
        done += n
    return torch.cat(rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name, tmp_path):
    """At each of 60 positions: at once, in chunks, token by token, and with slots thrown about."""
    reference = save(tmp_path, name)
    model, _ = load_model(tmp_path)
    assert model.dtype == "float32"
    ids = torch.randint(0, SMALL["vocab_size"], (60,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    assert expected.std() > 0.1
    scattered = torch.randperm(160, generator=torch.Generator().manual_seed(2)).tolist()[:60]
    for chunks, slots in (([60], None), ([7] * 8 + [4], None), ([1] * 60, None), ([20, 1, 1, 38], scattered)):
        torch.testing.assert_close(ours(model, ids, chunks, slots), expected, rtol=2e-4, atol=2e-4)


def test_the_window_hides_what_is_older_and_nothing_else(tmp_path):
    """Case ml-07: one layer of window 16; the 17th token back has no influence, the 16th has."""
    save(tmp_path, "mistral", num_hidden_layers=1)
    model, _ = load_model(tmp_path)
    ids = list(range(40))
    base = ours(model, ids, [40])[-1]
    for changed in range(40):
        other = [50 if i == changed else t for i, t in enumerate(ids)]
        same = torch.equal(ours(model, other, [40])[-1], base)
        assert same == (changed < 40 - 16), changed


def test_tied_embeddings_need_no_output_matrix(tmp_path):
    """Case ml-01."""
    save(tmp_path, tie_word_embeddings=True)
    names = stored_names(tmp_path)
    assert "lm_head.weight" not in names
    load_model(tmp_path)


def test_missing_output_matrix_is_an_error(tmp_path):
    """Case ml-03."""
    save(tmp_path, tie_word_embeddings=False)
    rewrite(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"missing lm_head\.weight") as caught:
        load_model(tmp_path)
    assert "tie_word_embeddings" in caught.value.hint
    assert str(tmp_path) in str(caught.value)


def test_left_over_and_misshapen_tensors_are_errors(tmp_path):
    save(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"model.layers.0.extra.weight": torch.zeros(2)}))
    with pytest.raises(ModelError, match=r"not used model\.layers\.0\.extra\.weight"):
        load_model(tmp_path)
    save(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(7)}))
    with pytest.raises(ModelError, match=r"model\.norm\.weight is \[7\], not \[32\]"):
        load_model(tmp_path)


def test_only_files_of_the_index_are_read(tmp_path, caplog):
    """Case ml-13: an old model.safetensors and an adapter beside an indexed checkpoint."""
    reference = save(tmp_path)
    stray = tmp_path / "old.safetensors"
    shutil.copy(tmp_path / "model.safetensors", stray)
    (tmp_path / "model.safetensors").unlink()
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    rewrite(tmp_path, lambda tensors: [tensor.zero_() for tensor in tensors.values()], file="old.safetensors")
    stray.rename(tmp_path / "model.safetensors")
    model, _ = load_model(tmp_path)
    with torch.no_grad():
        expected = reference(torch.tensor([[1, 2, 3]])).logits[0]
    torch.testing.assert_close(ours(model, [1, 2, 3], [3]), expected, rtol=2e-4, atol=2e-4)
    assert [r.message.count("model.safetensors") for r in caplog.records if "not read" in r.message] == [1]


def test_unknown_family_setting_and_path(tmp_path):
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, words in (
        ({"model_type": "mamba"}, "model_type 'mamba' is not known"),
        ({"hidden_act": "relu2"}, "activation 'relu2' is not known"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope scaling 'longrope' is not known"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq'"),
        ({"num_attention_heads": None}, "lacks num_attention_heads"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=words):
            load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is no JSON"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        load_model(tmp_path / "nowhere")


def test_dtype_is_as_stored_unless_asked(tmp_path):
    save(tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    stored, _ = load_model(tmp_path)
    assert stored.dtype == "bfloat16"
    wide, _ = load_model(tmp_path, dtype="fp32")
    assert wide.dtype == "float32"
    assert stored.kv_bytes_per_token == 2 * 3 * 2 * 8 * 2 == wide.kv_bytes_per_token // 2
    near, far = ours(stored, list(range(20)), [20]), ours(wide, list(range(20)), [20])
    assert near.dtype == torch.float32
    assert (near - far).abs().mean() < 0.1 * far.abs().mean()
    with pytest.raises(ModelError, match="cannot be held as 'q9'"):
        load_model(tmp_path, quantization="q9")


def test_progress_counts_tensors(tmp_path):
    save(tmp_path)
    seen = []
    load_model(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, len(seen)) for i in range(len(seen))]
    assert len(seen) == len(stored_names(tmp_path))


def stored_names(folder):
    from safetensors import safe_open

    with safe_open(str(folder / "model.safetensors"), "pt") as file:
        return list(file.keys())


def rewrite(folder, change, file="model.safetensors"):
    from safetensors.torch import load_file, save_file

    tensors = load_file(str(folder / file))
    change(tensors)
    save_file(tensors, str(folder / file))
