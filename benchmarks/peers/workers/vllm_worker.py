"""vLLM's CPU build in its own process, at its best settings here: FOLDER FORM THREADS.

Blocks of 32 tokens, so that nearly all of a shared prefix is found again, and JSON without free white space, as
palmette writes it. FOLDER is a model as transformers saves it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import count
from time import perf_counter
from typing import Any

from .texts import LETTERS, Messages, Refused, Text, TextEngine, chat
from .wire import serve

_CACHE_GB = 2
_BLOCK = 32
_TOP = 50


class Vllm(TextEngine):
    def __init__(self, model: str, form: str, threads: int) -> None:
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE=str(_CACHE_GB),
            VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}",
            VLLM_ENABLE_V1_MULTIPROCESSING="0",  # steps are ours to take, so that tokens can be timed
            VLLM_NO_USAGE_STATS="1",
        )
        self._lib: Any = import_module("vllm")
        self._sampling: Any = import_module("vllm.sampling_params")
        self._settings = {
            "dtype": {"bf16": "bfloat16", "f32": "float32"}[form],
            "max_model_len": 4096,
            "max_num_seqs": 64,
            "block_size": _BLOCK,
            "enable_prefix_caching": True,
            "max_logprobs": _TOP,
            "disable_log_stats": True,
            "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        }
        self._llm = self._lib.LLM(model=model, **self._settings)
        self._tokenizer = self._llm.get_tokenizer()
        self._numbers = count()

    def facts(self) -> dict[str, Any]:
        return {"version": self._lib.__version__, "settings": self._settings, "cache_gb": _CACHE_GB}

    def stream(self, prompt: str, new: int) -> list[float]:
        engine = self._llm.llm_engine
        engine.add_request(str(next(self._numbers)), prompt, self._params(new))
        times: list[float] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                times += [perf_counter()] * (len(output.outputs[0].token_ids) - len(times))
        return times

    def complete(self, prompts: Sequence[str], new: int, *, prefix: str = "") -> list[Text]:
        return self._texts([prefix + prompt for prompt in prompts], self._params(new))

    def json(self, talks: Sequence[Messages], schemas: Sequence[Mapping[str, Any]], limit: int) -> list[Text]:
        params = [
            self._params(
                limit, ignore_eos=False, structured_outputs=self._sampling.StructuredOutputsParams(json=dict(schema))
            )
            for schema in schemas
        ]
        return self._texts([chat(talk) for talk in talks], params)

    def letters(self, prefix: str, questions: Sequence[str]) -> list[int]:
        outputs = self._generate([prefix + question for question in questions], self._params(1, logprobs=_TOP))
        chosen = []
        for output in outputs:
            told = {each.decoded_token: each.logprob for each in output.outputs[0].logprobs[0].values()}
            if not any(letter in told for letter in LETTERS):
                raise Refused(f"no letter is among the {_TOP} likeliest tokens")
            chosen.append(max(range(len(LETTERS)), key=lambda i: told.get(LETTERS[i], float("-inf"))))
        return chosen

    def options(self, prefix: str, questions: Sequence[str], options: Sequence[Sequence[str]]) -> list[int]:
        """By the log-probabilities of a whole prompt, which it computes without its prefix cache."""
        prompts = [prefix + q + text for q, texts in zip(questions, options, strict=True) for text in texts]
        outputs = iter(self._generate(prompts, self._params(1, prompt_logprobs=0)))
        chosen = []
        for texts in options:
            sums = []
            for text in texts:
                output = next(outputs)
                length = len(self._tokenizer.encode(text, add_special_tokens=False))
                tail = zip(output.prompt_token_ids[-length:], output.prompt_logprobs[-length:], strict=True)
                sums.append(sum(told[token].logprob for token, told in tail))
            chosen.append(max(range(len(texts)), key=sums.__getitem__))
        return chosen

    def _params(self, new: int, *, ignore_eos: bool = True, **settings: Any) -> Any:
        return self._lib.SamplingParams(temperature=0, max_tokens=new, ignore_eos=ignore_eos, **settings)

    def _texts(self, prompts: list[str], params: Any) -> list[Text]:
        outputs = self._generate(prompts, params)
        return [Text(each.outputs[0].text, len(each.outputs[0].token_ids)) for each in outputs]

    def _generate(self, prompts: list[str], params: Any) -> list[Any]:
        found: list[Any] = self._llm.generate(prompts, params, use_tqdm=False)
        return found


if __name__ == "__main__":
    serve(lambda: Vllm(sys.argv[1], sys.argv[2], int(sys.argv[3])))
