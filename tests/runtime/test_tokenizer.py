"""Tokens of trusted and untrusted text, BOS, end tokens, SentencePiece's blanks; also against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from palmette.errors import ModelError
from palmette.runtime.protocol import Piece
from palmette.runtime.tokenizer import Tokenizer
from palmette.runtime.tokenizer_gguf import gguf_parts

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# -- bytes ---------------------------------------------------------------------------------------------------------


def test_control_tokens_count_in_trusted_text_only():
    """Case ml-04."""
    t = Tokenizer.of_bytes(("<eos>", "<|im_end|>"))
    assert t.encode("a<eos>") == list(b"a<eos>")
    assert t.encode([Piece("a<eos>", True)]) == [97, 256]
    assert t.encode([Piece("<eos>", True), Piece("<eos>"), Piece("<|im_end|>", True)]) == [256, *b"<eos>", 257]
    assert t.encode_prompt("x<|im_end|>") == [120, 257]


def test_a_control_token_never_arises_across_a_trust_border():
    t = Tokenizer.of_bytes(("<eos>",))
    assert t.encode([Piece("<e", True), Piece("os>")]) == list(b"<eos>")
    assert t.encode([Piece("<e"), Piece("os>", True)]) == list(b"<eos>")
    assert t.encode([Piece("<e", True), Piece("os>", True)]) == [256]


def test_the_longest_control_token_wins():
    t = Tokenizer.of_bytes(("<|", "<|im|>"))
    assert t.encode_prompt("<|im|><|") == [257, 256]
    assert t.end_token("<|im|>\n") == 257
    assert t.end_token("x<|im|>") is None


@given(st.lists(st.tuples(st.text(alphabet="ab<eos>é日", max_size=6), st.booleans()), max_size=6))
def test_pieces_spell_their_text_and_untrusted_text_holds_no_control_token(pieces):
    t = BYTES
    ids = t.encode([Piece(text, trusted) for text, trusted in pieces])
    whole = "".join(text for text, _ in pieces)
    assert b"".join(t.token_bytes[i] or b"<eos>" for i in ids).decode() == whole
    assert ids.count(256) <= sum(text.count("<eos>") for text, _ in pieces) + whole.count("<eos>")
    assert 256 not in t.encode([Piece(text) for text, _ in pieces])


BYTES = Tokenizer.of_bytes()


def test_decode():
    assert BYTES.decode([*"é".encode(), 256, 97]) == "éa"
    assert BYTES.decode([0xC3, 97]) == "\ufffda"
    assert BYTES.decode([999]) == ""
    assert BYTES.decode(BYTES.encode("half \ud83d of a pair")) == "half \ufffd of a pair"
    assert BYTES.show(256) == "<eos>"
    assert BYTES.encode("") == []


def test_vocabulary_covers_the_whole_width():
    """Case ml-11: padding columns beyond the tokens."""
    t = Tokenizer.of_bytes(width=300)
    assert (t.n_tokens, t.width, t.vocabulary.width) == (257, 300, 300)
    assert t.vocabulary.end_ids == {256}
    assert t.vocabulary.token_bytes[97] == b"a"
    assert all(spelling is None for spelling in t.vocabulary.token_bytes[256:])
    assert t.encode_bytes("é".encode()[:1]) == []
    assert t.encode_bytes("aé".encode()[:2]) == [97]


def test_fingerprint_tells_vocabularies_apart():
    assert Tokenizer.of_bytes().fingerprint == BYTES.fingerprint
    assert Tokenizer.of_bytes(("<other>",)).fingerprint != BYTES.fingerprint


# -- folders of Hugging Face -----------------------------------------------------------------------------------------


def sentence_piece(scheme):
    """A small SentencePiece-like tokenizer.json. scheme: Metaspace's, or "legacy" (a normalizer puts the blank)."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "h", "i", "▁h", "hi", "▁hi"]
    merges = [("h", "i"), ("▁", "h"), ("▁", "hi")]
    model = tokenizers.models.BPE(
        {w: i for i, w in enumerate(words)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    t = tokenizers.Tokenizer(model)
    if scheme == "legacy":
        steps = [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
        t.normalizer = tokenizers.normalizers.Sequence(steps)
    else:
        t.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    replace = tokenizers.decoders.Replace("▁", " ")
    t.decoder = tokenizers.decoders.Sequence([replace, tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
    t.add_special_tokens([tokenizers.AddedToken(s, special=True, normalized=False) for s in ("<unk>", "<s>", "</s>")])
    return t


def folder(path, tokenizer, **files):
    tokenizer.save(str(path / "tokenizer.json"))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


@pytest.mark.parametrize("scheme", ["first", "always", "never", "legacy"])
@pytest.mark.parametrize(
    "text", ["hi hi", "<s>hi</s>hi", "<s> hi", "", "hi<s>", "é hi\n", "<s><s>h i", " hi", "hi  hi </s> hi"]
)
def test_sentence_piece_equals_the_library(scheme, text, tmp_path):
    library = sentence_piece(scheme)
    ours = Tokenizer.of_folder(folder(tmp_path, library))
    assert ours.encode([Piece(text, True)], start=True) == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("scheme", ["first", "always", "never", "legacy"])
def test_text_that_goes_on_gets_no_blank(scheme, tmp_path):
    library = sentence_piece(scheme)
    t = Tokenizer.of_folder(folder(tmp_path, library))
    hi, blank_hi = library.token_to_id("hi"), library.token_to_id("▁hi")
    assert t.encode("hi") == [hi]
    assert t.encode(" hi") == [blank_hi]
    assert t.encode("hi", start=True) == [hi if scheme == "never" else blank_hi]
    assert t.decode([hi, blank_hi, library.token_to_id("<0xC3>"), library.token_to_id("<0xA9>")]) == "hi hié"
    assert t.token_bytes[0] is t.token_bytes[1] is None


def test_bos_is_there_once_or_not_at_all(tmp_path):
    """Cases ml-05 and ml-06."""
    library = sentence_piece("first")
    config = {"add_bos_token": True, "bos_token": "<s>", "chat_template": "{{ bos_token }}" + CHATML}
    t = Tokenizer.of_folder(folder(tmp_path, library, tokenizer_config=config))
    assert t.bos_id == 1
    assert t.encode("hi", start=True)[:2] == [1, library.token_to_id("▁hi")]
    assert t.encode_prompt("<s>hi").count(1) == 1
    assert t.encode_prompt("hi").count(1) == 1
    assert t.encode("hi").count(1) == 0
    opened = t.encode([Piece(t.chat_open(["user"]), True), Piece("hi")], start=True)
    assert opened.count(1) == 1
    assert "BOS '<s>' in front" in t.describe()
    without = Tokenizer.of_folder(folder(tmp_path, library, tokenizer_config={**config, "add_bos_token": False}))
    assert without.encode_prompt("hi") == t.encode_prompt("hi")[1:]
    assert "no BOS" in without.describe()
    none = Tokenizer.of_folder(folder(tmp_path, library, tokenizer_config={"bos_token": None}))
    assert none.bos_id is None
    assert none.encode_prompt("hi") == t.encode_prompt("hi")[1:]


def test_bos_by_the_post_processor(tmp_path):
    library = sentence_piece("first")
    library.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    t = Tokenizer.of_folder(folder(tmp_path, library, tokenizer_config={"bos_token": "<s>"}))
    assert t.encode_prompt("hi") == library.encode("hi").ids


def test_end_tokens_are_the_union_of_all_files(tmp_path):
    """Case ml-16."""
    library = sentence_piece("first")
    for generation, expected in (({"eos_token_id": [2, 9]}, {2, 7, 9}), ({"eos_token_id": 3}, {2, 3, 7}), ({}, {2, 7})):
        files = {"tokenizer_config": {"eos_token": {"content": "</s>"}}, "config": {"eos_token_id": 7}}
        t = Tokenizer.of_folder(folder(tmp_path, library, generation_config=generation, **files))
        assert t.eos_ids == expected


def test_chat_template_file_comes_before_the_config(tmp_path):
    library = sentence_piece("first")
    folder(tmp_path, library, tokenizer_config={"chat_template": [{"name": "default", "template": "A{{messages}}"}]})
    assert Tokenizer.of_folder(tmp_path).chat.source == "A{{messages}}"
    (tmp_path / "chat_template.jinja").write_text("B{{messages}}")
    assert Tokenizer.of_folder(tmp_path).chat.source == "B{{messages}}"


def test_markers_that_the_template_writes_are_control_tokens_whatever_their_flag(tmp_path):
    library = sentence_piece("first")
    library.add_tokens([tokenizers.AddedToken(s, special=False, normalized=False) for s in ("<call>", "<b>", "    ")])
    t = Tokenizer.of_folder(folder(tmp_path, library, tokenizer_config={"chat_template": "<call>{{messages}}"}))
    call, bold, blanks = (library.token_to_id(s) for s in ("<call>", "<b>", "    "))
    assert call in t.encode_prompt("<call>")
    assert call not in t.encode("<call>")
    assert bold in t.encode("x<b>")
    assert blanks in t.encode("x    x")
    assert t.token_bytes[blanks] == b"    "


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(ModelError, match="WordPiece"):
        Tokenizer.of_folder(folder(tmp_path, library))
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.of_folder(tmp_path / "nowhere")


# -- GGUF ------------------------------------------------------------------------------------------------------------


def gguf_metadata(**changes):
    library = sentence_piece("first")
    words = [library.id_to_token(i) for i in range(library.get_vocab_size())]
    scores = {"hi": -1.0, "▁h": -2.0, "▁hi": -3.0}
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [scores.get(w, -100.0) for w in words],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(words) - 259)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }


@pytest.mark.parametrize("text", ["hi hi", "<s>hi</s>hi", "é hi\n", " hi", "hhii  hi"])
def test_gguf_sentence_piece_by_scores(text):
    library = sentence_piece("first")
    t = Tokenizer(gguf_parts(gguf_metadata()))
    assert t.encode([Piece(text, True)], start=True)[0] == 1  # the kind's default: a BOS
    without = Tokenizer(gguf_parts(gguf_metadata(add_bos_token=False)))
    assert without.encode([Piece(text, True)], start=True) == library.encode(text, add_special_tokens=False).ids
    assert without.decode(without.encode(text)) == text
    plain = Tokenizer(gguf_parts(gguf_metadata(add_space_prefix=False, add_bos_token=False)))
    expected = sentence_piece("never").encode(text, add_special_tokens=False).ids
    assert plain.encode([Piece(text, True)], start=True) == expected


def test_gguf_end_tokens_and_unknown_kinds():
    assert Tokenizer(gguf_parts(gguf_metadata(eot_token_id=7))).eos_ids == {2, 7}
    with pytest.raises(ModelError, match="'bert', which is not known"):
        gguf_parts(gguf_metadata(model="bert"))
    with pytest.raises(ModelError, match="pre-tokenizer 'klingon' is not known"):
        gguf_parts(gguf_metadata(model="gpt2", pre="klingon"))
    with pytest.raises(ModelError, match="missing"):
        gguf_parts({})


WORDS = "Hello world's 12345 items\n\n  don't  DON'T ünï 日本語 🎉 x=1;\t// done\r\n"


@pytest.mark.parametrize("rule", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_gguf_words_are_cut_by_the_named_rule(rule):
    """A vocabulary without merges but with whole words shows where the rule cuts."""
    from palmette.runtime.tokenizer_library import byte_alphabet

    letters = sorted(byte_alphabet(), key=lambda c: byte_alphabet()[c])
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": rule, "tokenizer.ggml.tokens": letters}
    t = Tokenizer(gguf_parts(metadata))
    assert t.decode(t.encode(WORDS)) == WORDS
    assert t.token_bytes == [bytes([i]) for i in range(256)]
    words = [piece for piece, _ in t._backend.pre_tokenizer.pre_tokenize_str("ab 123\n\n4 x's X'S")]
    expected = {
        "gpt-2": ["ab", "Ġ123", "Ċ", "Ċ", "4", "Ġx", "'s", "ĠX", "'", "S"],
        "smollm": ["ab", "Ġ", "1", "2", "3", "ĊĊ", "4", "Ġx", "'s", "ĠX", "'", "S"],
        "llama-bpe": ["ab", "Ġ", "123", "ĊĊ", "4", "Ġx", "'s", "ĠX", "'S"],
        "qwen2": ["ab", "Ġ", "1", "2", "3", "ĊĊ", "4", "Ġx", "'s", "ĠX", "'S"],
        "tekken": ["ab", "Ġ", "1", "2", "3", "ĊĊ", "4", "Ġx", "'s", "ĠX", "'S"],
        "gpt-4o": ["ab", "Ġ", "123", "ĊĊ", "4", "Ġx's", "ĠX'S"],
    }
    assert words == expected[rule]


# -- the real one ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm():
    from palmette.runtime.models.gguf_file import GgufFile
    from palmette.runtime.models.registry import resolve

    path = resolve("smollm2-135m")
    file = GgufFile(path)
    yield path, Tokenizer(gguf_parts(file.metadata, name="smollm2"))
    file.close()


@pytest.mark.real
def test_smollm_equals_transformers(smollm):
    """On text that the two cut alike: transformers' GGUF reader lacks the rule that digits stand alone, so there white
    space of two or more characters before a digit is cut otherwise. The model's own tokenizer.json has the rule."""
    from transformers import AutoTokenizer

    path, ours = smollm
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    texts = [WORDS, Path(__file__).read_text(encoding="utf-8"), "<|im_start|>user\nhi <|im_end|>", "", " ", "a" * 500]
    for text in texts:
        text = "\n".join(line.lstrip() for line in text.splitlines() if not line.lstrip()[:1].isdigit())
        assert ours.encode_prompt(text) == theirs.encode(text, add_special_tokens=False), text[:50]
        assert ours.decode(ours.encode(text)) == text
    assert ours.encode("\n\n7") == [1116, 39]


@pytest.mark.real
def test_smollm_chat_equals_apply_chat_template(smollm):
    from transformers import AutoTokenizer

    from palmette.runtime.prompt import chat_pieces

    path, ours = smollm
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    messages = [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": " Hi\n there, 123! "},
        {"role": "assistant", "content": "ok\n"},
        {"role": "user", "content": ""},
    ]
    for part in (messages[:2], messages, messages[1:2]):
        expected = theirs.apply_chat_template(part, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert ours.encode(chat_pieces(ours, part), start=True) == expected


@pytest.mark.real
def test_smollm_facts(smollm):
    _, t = smollm
    assert (t.n_tokens, t.eos_ids, t.bos_id, t.add_bos) == (49152, {2}, 1, False)
    assert t.end_token(t.chat_close(["user", "assistant"])) == 2
    assert t.encode("<|im_end|>") != [2]
    assert t.encode_prompt("<|im_end|>") == [2]
    assert t.vocabulary.width == 49152
