"""transformers' generate() on a left-padded batch; a prefix's KV is computed once and copied: GGUF FORM THREADS."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from .texts import LETTERS, Text, TextEngine
from .wire import serve

# Rows of one forward call that hold a copy of the prefix each.
_ROWS = 64


class Stamps:
    """A streamer that keeps the time of each token; the first thing that is put is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: Any) -> None:
        self.times.append(perf_counter())

    def end(self) -> None:
        pass


class Transformers(TextEngine):
    def __init__(self, model: str, form: str, threads: int) -> None:
        self._torch: Any = import_module("torch")
        self._lib: Any = import_module("transformers")
        self._torch.set_num_threads(threads)
        dtype = {"bf16": self._torch.bfloat16, "f32": self._torch.float32}[form]
        file = Path(model)
        self._tokenizer = self._lib.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        self._tokenizer.padding_side = "left"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        # Spread out: packed weights are slower in bf16, and are another computation.
        spread = self._lib.GgufConfig(dequantize=True)
        self._model = self._lib.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=dtype, quantization_config=spread
        ).eval()
        self._prefix: tuple[str, Any, Any] = ("", None, None)

    def facts(self) -> dict[str, Any]:
        return {"version": self._lib.__version__, "torch": self._torch.__version__, "dtype": str(self._model.dtype)}

    def stream(self, prompt: str, new: int) -> list[float]:
        stamps = Stamps()
        self._generate(self._encode([prompt]), new, streamer=stamps)
        return stamps.times[1:]

    def complete(self, prompts: Sequence[str], new: int, *, prefix: str = "") -> list[Text]:
        rows = [row for i in range(0, len(prompts), _ROWS) for row in self._rows(prompts[i : i + _ROWS], new, prefix)]
        return [Text(self._tokenizer.decode(row, skip_special_tokens=True), len(row)) for row in rows]

    def letters(self, prefix: str, questions: Sequence[str]) -> list[int]:
        ids = [self._tokenizer(letter, add_special_tokens=False).input_ids[0] for letter in LETTERS]
        chosen: list[int] = self._logits(prefix, questions, 1)[1][:, -1, ids].argmax(-1).tolist()
        return chosen

    def options(self, prefix: str, questions: Sequence[str], options: Sequence[Sequence[str]]) -> list[int]:
        chosen, step = [], _ROWS // 4
        for start in range(0, len(questions), step):
            part = options[start : start + step]
            tails = [q + text for q, texts in zip(questions[start : start + step], part, strict=True) for text in texts]
            lengths = [len(ids) for texts in part for ids in self._tokenizer(list(texts)).input_ids]
            most = max(lengths)
            ids, logits = self._logits(prefix, tails, most + 1)
            told = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, -most:, None])[..., 0]
            sums = iter(float(row[-length:].sum()) for row, length in zip(told, lengths, strict=True))
            for texts in part:
                each = [next(sums) for _ in texts]
                chosen.append(max(range(len(texts)), key=each.__getitem__))
        return chosen

    def _rows(self, prompts: Sequence[str], new: int, prefix: str) -> list[Any]:
        tail = self._encode(prompts)
        if not prefix:
            return list(self._generate(tail, new))
        ids, cache = self._behind(prefix, len(prompts))
        both = {
            "input_ids": self._torch.cat([ids, tail["input_ids"]], 1),
            "attention_mask": self._torch.cat([self._torch.ones_like(ids), tail["attention_mask"]], 1),
        }
        return list(self._generate(both, new, past_key_values=cache))

    def _logits(self, prefix: str, tails: Sequence[str], keep: int) -> tuple[Any, Any]:
        """Tokens of the tails [N, padded] and the last `keep` logits [N, keep, V]."""
        tail = self._encode(tails)
        ids, cache = self._behind(prefix, len(tails))
        mask = self._torch.cat([self._torch.ones_like(ids), tail["attention_mask"]], 1)
        with self._torch.inference_mode():
            logits = self._model(
                input_ids=tail["input_ids"],
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1)[:, ids.shape[1] :],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=keep,
            ).logits
        return tail["input_ids"], logits

    def _behind(self, prefix: str, rows: int) -> tuple[Any, Any]:
        """The prefix's tokens [rows, n] and a cache that has them for each row."""
        if self._prefix[0] != prefix:
            ids = self._encode([prefix])["input_ids"]
            cache = self._lib.DynamicCache(config=self._model.config)
            with self._torch.inference_mode():
                self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            self._prefix = (prefix, ids, cache)
        _, ids, cache = self._prefix
        cache = copy.deepcopy(cache)
        cache.batch_repeat_interleave(rows)
        return ids.expand(rows, -1), cache

    def _encode(self, texts: Sequence[str]) -> Any:
        return self._tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=False)

    def _generate(self, inputs: Any, new: int, **settings: Any) -> Any:
        with self._torch.inference_mode():
            out = self._model.generate(**inputs, max_new_tokens=new, min_new_tokens=new, do_sample=False, **settings)
        return out[:, inputs["input_ids"].shape[1] :]


if __name__ == "__main__":
    serve(lambda: Transformers(sys.argv[1], sys.argv[2], int(sys.argv[3])))
