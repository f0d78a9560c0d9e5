"""OpenVINO GenAI's ContinuousBatchingPipeline, which reads GGUF files itself: GGUF FORM THREADS."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from time import perf_counter
from typing import Any

from .texts import LETTERS, Messages, Refused, Text, TextEngine, chat
from .wire import serve

_CACHE_GB = 2


class OpenVino(TextEngine):
    def __init__(self, model: str, form: str, threads: int) -> None:
        self._genai: Any = import_module("openvino_genai")
        scheduler = self._genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = _CACHE_GB
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = 64
        hint = {"INFERENCE_PRECISION_HINT": form} if form in ("bf16", "f32") else {}
        self._properties = {"INFERENCE_NUM_THREADS": threads, **hint}
        self._pipe = self._genai.ContinuousBatchingPipeline(model, scheduler, "CPU", self._properties)
        self._tokenizer = self._pipe.get_tokenizer()
        self._requests = 0

    def facts(self) -> dict[str, Any]:
        return {"version": version("openvino-genai"), "properties": self._properties, "cache_gb": _CACHE_GB}

    def stream(self, prompt: str, new: int) -> list[float]:
        self._requests += 1
        handle = self._pipe.add_request(self._requests, prompt, self._config(new))
        times = []
        while self._pipe.has_non_finished_requests():
            self._pipe.step()
            if handle.can_read():
                times += [perf_counter()] * sum(len(output.generated_ids) for output in handle.read().values())
        return times

    def complete(self, prompts: Sequence[str], new: int, *, prefix: str = "") -> list[Text]:
        texts = self._generate([prefix + text for text in prompts], [self._config(new)] * len(prompts))
        return [Text(text, new) for text in texts]

    def json(self, talks: Sequence[Messages], schemas: Sequence[Mapping[str, Any]], limit: int) -> list[Text]:
        structured = [self._genai.StructuredOutputConfig(json_schema=json.dumps(schema)) for schema in schemas]
        configs = [self._config(limit, ignore_eos=False, structured_output_config=each) for each in structured]
        texts = self._generate([chat(talk) for talk in talks], configs)
        return [Text(text, self._count(text) + 1) for text in texts]  # the end token is drawn too

    def letters(self, prefix: str, questions: Sequence[str]) -> list[int]:
        """It tells no log-probabilities of tokens it did not draw; so it draws the best letter under a constraint."""
        structured = self._genai.StructuredOutputConfig(regex=" [A-D]")
        config = self._config(1, ignore_eos=False, structured_output_config=structured)
        texts = self._generate([prefix + question for question in questions], [config] * len(questions))
        if not all(text in LETTERS for text in texts):
            raise Refused(f"one token did not give a letter: {texts[:4]}")
        return [LETTERS.index(text) for text in texts]

    def _config(self, new: int, **settings: Any) -> Any:
        config = self._genai.GenerationConfig()
        for name, value in {"ignore_eos": True, **settings}.items():
            setattr(config, name, value)
        config.max_new_tokens = new
        config.do_sample = False
        config.apply_chat_template = False
        return config

    def _generate(self, prompts: list[str], configs: list[Any]) -> list[str]:
        return [result.m_generation_ids[0] for result in self._pipe.generate(prompts, configs)]

    def _count(self, text: str) -> int:
        return int(self._tokenizer.encode(text, add_special_tokens=False).input_ids.shape[1])


if __name__ == "__main__":
    serve(lambda: OpenVino(sys.argv[1], sys.argv[2], int(sys.argv[3])))
