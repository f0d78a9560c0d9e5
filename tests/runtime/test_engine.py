"""The engine on a tiny random model: the same tokens in every schedule, exact counts, one end for every request."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import palmette as pt
from palmette.errors import (
    ArgumentError,
    BackendError,
    ConstraintError,
    ContextLengthError,
    PalmetteError,
)
from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.runtime.protocol import Delta, Failed, Finished, GenerateRequest, SamplingParams, ScoreRequest

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]
PROMPTS = [list(range(1, 1 + n)) for n in (1, 2, 5, 17, 40)] + [[7] * 9, [9, 8, 7], list(range(1, 30)) + [3] * 11]


def logits_of(engine: Any, tokens: list[int]) -> torch.Tensor:
    """Logits behind every token, by one plain forward pass with a cache of its own; padding left out."""
    kv = engine.model.new_kv(len(tokens))
    every = list(range(len(tokens)))
    batch = RaggedBatch.of([Segment(tokens, 0, [], every, every)])
    return torch.as_tensor(engine.model.forward(batch, kv))[:, : engine.tokenizer.n_tokens]


def greedy(engine: Any, prompt: list[int], count: int) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(engine, tokens)[-1].argmax()))
    return tuple(tokens[len(prompt) :])


SCHEDULES = [
    {},
    {"max_step_tokens": 7},
    {"max_step_tokens": 1},
    {"cache": False},
    {"kv_tokens": 64},
    {"max_running": 2, "policy": "fcfs"},
]


@pytest.mark.parametrize("settings", SCHEDULES)
def test_greedy_tokens_are_the_models_in_every_schedule(tiny_engine: Make, settings: dict[str, Any]) -> None:
    engine = tiny_engine(**settings)
    want = [greedy(engine, prompt, 12) for prompt in PROMPTS]
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = [engine.generate(prompt, **options).tokens for prompt in PROMPTS]
    warm = [out.tokens for out in engine.generate(PROMPTS * 2, **options)]
    assert alone == want
    assert warm == want * 2


def test_seeded_samples_do_not_depend_on_company(tiny_engine: Make) -> None:
    engine = tiny_engine()
    options = {"max_tokens": 12, "temperature": 0.9, "top_p": 0.95, "ignore_eos": True}
    alone = [engine.generate(prompt, seed=i, **options).tokens for i, prompt in enumerate(PROMPTS)]
    engine.flush_cache()
    results: dict[int, Any] = {}

    def one(i: int) -> None:
        results[i] = engine.generate(PROMPTS[i], seed=i, **options).tokens

    threads = [threading.Thread(target=one, args=(i,)) for i in reversed(range(len(PROMPTS)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(len(PROMPTS))] == alone
    three = engine.generate(PROMPTS[3], seed=3, n=3, **options)
    assert three[0].tokens == alone[3]
    assert len({out.tokens for out in three}) == 3


def test_requests_without_a_seed_differ(tiny_engine: Make) -> None:
    engine = tiny_engine()
    outs = engine.generate([[5, 6]] * 6, max_tokens=10, ignore_eos=True)
    assert len({out.tokens for out in outs}) == 6


def test_a_growing_prompt_computes_each_token_once(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = list(range(50, 90))
    cached = 0
    for turn in range(5):
        out = engine.generate(prompt, max_tokens=6, ignore_eos=True, seed=turn)
        # The last token of the turn before was drawn but never computed.
        assert out.usage.cached_tokens == cached
        cached = len(prompt) + 6 - 1
        prompt = [*prompt, *out.tokens, *range(10 + turn, 15 + turn)]
    assert engine.stats()["computed_tokens"] == cached
    assert engine.stats()["kv_cached"] == cached


def test_siblings_compute_a_common_prefix_once(tiny_engine: Make) -> None:
    engine = tiny_engine(max_step_tokens=16)
    prefix = [i % 250 for i in range(100)]
    prompts = [[*prefix, 200 + i, 100 + i] for i in range(8)]
    outs = engine.generate(prompts, max_tokens=1, ignore_eos=True)
    assert engine.stats()["computed_tokens"] == 100 + 8 * 2
    assert sorted(out.usage.cached_tokens for out in outs) == [0] + [100] * 7


def test_samples_of_one_prompt_compute_it_once(tiny_engine: Make) -> None:
    engine = tiny_engine()
    engine.generate(list(range(40)), n=4, max_tokens=1, ignore_eos=True)
    assert engine.stats()["computed_tokens"] == 40 + 3


def test_the_pool_is_never_over_committed(tiny_engine: Make) -> None:
    engine = tiny_engine(kv_tokens=64)
    prompts = [[i] * 20 for i in range(12)]
    outs = engine.generate(prompts, max_tokens=30, ignore_eos=True)
    assert [len(out.tokens) for out in outs] == [30] * 12
    stats = engine.stats()
    assert stats["kv_free"] + stats["kv_cached"] == 64
    assert engine.flush_cache() == stats["kv_cached"]
    assert engine.stats()["kv_free"] == 64


def test_what_can_never_fit_is_refused_at_once(tiny_engine: Make) -> None:
    engine = tiny_engine(kv_tokens=64)
    with pytest.raises(ContextLengthError, match="KV cache") as caught:
        engine.generate([1] * 65, max_tokens=1)
    assert "kv_tokens" in caught.value.hint
    with pytest.raises(ContextLengthError, match="context"):
        engine.generate([1] * 5000, max_tokens=1)
    # A prompt that fits is answered as far as there is room.
    for limit in (30, None):
        out = engine.generate([1] * 40, max_tokens=limit, ignore_eos=True)
        assert (len(out.tokens), out.finish_reason) == (25, "length")


def test_prefill_only(tiny_engine: Make) -> None:
    engine = tiny_engine()
    for cached in (0, 30):
        out = engine.generate(list(range(30)), max_tokens=0)
        assert (out.text, out.tokens, out.finish_reason) == ("", (), "length")
        assert out.usage.cached_tokens == cached
    assert engine.stats()["computed_tokens"] == 30


def test_logprobs_are_the_models(tiny_engine: Make) -> None:
    engine = tiny_engine(max_step_tokens=5)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    out = engine.generate(prompt, max_tokens=6, temperature=0.8, seed=2, logprobs=3, ignore_eos=True)
    assert out.logprobs is not None
    table = torch.log_softmax(logits_of(engine, [*prompt, *out.tokens]), dim=-1)
    for i, entry in enumerate(out.logprobs):
        line = table[len(prompt) - 1 + i]
        assert entry.token == out.tokens[i]
        assert entry.logprob == pytest.approx(float(line[entry.token]), abs=1e-5)
        assert [token for token, _ in entry.top] == line.topk(3).indices.tolist()


def test_cancelling_frees_everything_within_a_step(tiny_engine: Make) -> None:
    engine = tiny_engine()
    stream = engine.generate([1, 2, 3], max_tokens=2000, stream=True, ignore_eos=True)
    next(stream)
    stream.close()
    deadline = threading.Event()
    for _ in range(200):
        if engine.stats()["running"] == 0:
            break
        deadline.wait(0.02)
    stats = engine.stats()
    assert (stats["running"], stats["cancelled"]) == (0, 1)
    assert stats["kv_free"] + stats["kv_evictable"] == stats["kv_tokens"]


def test_async_requests_and_cancelled_tasks(tiny_engine: Make) -> None:
    engine = tiny_engine()

    async def main() -> None:
        outs = await asyncio.gather(*(engine.agenerate([i, 2], max_tokens=4, ignore_eos=True) for i in range(5)))
        assert all(len(out.tokens) == 4 for out in outs)
        task = asyncio.create_task(engine.agenerate([1, 2], max_tokens=2000, ignore_eos=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        score = await engine.score_async(ScoreRequest((1, 2, 3), ("ab", "cd")))
        assert score.choice in ("ab", "cd")

    asyncio.run(main())
    assert engine.generate([4], max_tokens=1).finish_reason


def test_every_request_ends_once(tiny_engine: Make) -> None:
    engine = tiny_engine(kv_tokens=200, max_step_tokens=16)

    async def events(request: GenerateRequest, stop_after: int | None) -> list[Any]:
        seen = []
        iterator = engine.submit(request)
        async for event in iterator:
            seen.append(event)
            if stop_after is not None and len(seen) >= stop_after:
                await iterator.aclose()
                break
        return seen

    async def main() -> list[list[Any]]:
        requests = []
        for i in range(30):
            params = SamplingParams(max_tokens=i % 7 * 5, n=1 + i % 3, seed=i, ignore_eos=i % 2 == 0)
            request = GenerateRequest(tuple([i % 4] * (1 + i * 3)), params, stream=i % 2 == 0)
            requests.append(events(request, 2 if i % 5 == 4 else None))
        return await asyncio.gather(*requests)

    for i, seen in enumerate(asyncio.run(main())):
        terminal = [event for event in seen if isinstance(event, Finished | Failed)]
        assert all(isinstance(event, Delta) for event in seen[: -len(terminal) or None])
        if i % 5 != 4:
            assert len(terminal) == 1
            assert isinstance(terminal[0], Finished) and len(terminal[0].outputs) == 1 + i % 3


def test_a_step_that_breaks_ends_its_requests_and_the_engine_goes_on(
    tiny_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    forward = type(engine.model).forward
    broken = [True]

    def fail_once(model: Any, batch: Any, kv: Any) -> Any:
        if broken and len(batch.tokens) == 1:
            broken.clear()
            raise RuntimeError("out of luck")
        return forward(model, batch, kv)

    monkeypatch.setattr(type(engine.model), "forward", fail_once)
    with pytest.raises(BackendError, match="out of luck"):
        engine.generate([1, 2, 3], max_tokens=8, ignore_eos=True)
    assert engine.check_integrity() == []
    assert engine.generate([1, 2, 3], max_tokens=8, temperature=0, ignore_eos=True).tokens == greedy(
        engine, [1, 2, 3], 8
    )
    assert engine.stats()["failed"] == 1


def test_closing_ends_what_is_in_flight(tiny_engine: Make) -> None:
    engine = tiny_engine()
    errors: list[BaseException] = []

    def long() -> None:
        try:
            engine.generate([1], max_tokens=1000, ignore_eos=True)
        except PalmetteError as error:
            errors.append(error)

    threads = [threading.Thread(target=long) for _ in range(3)]
    for thread in threads:
        thread.start()
    while engine.stats()["running"] < 3:
        pass
    engine.close()
    for thread in threads:
        thread.join(timeout=10)
    assert len(errors) == 3
    with pytest.raises(BackendError, match="closed"):
        engine.generate([1], max_tokens=1)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"temprature": 1}, TypeError, "temperature"),
        ({"temperature": -1}, ArgumentError, "temperature"),
        ({"temperature": "hot"}, TypeError, "temperature"),
        ({"top_p": 0}, ArgumentError, "top_p"),
        ({"max_tokens": -1}, ArgumentError, "max_tokens"),
        ({"max_tokens": 1.5}, TypeError, "max_tokens"),
        ({"stop": [""]}, ArgumentError, "stop"),
        ({"stop": 7}, TypeError, "stop"),
        ({"stop": ["a", "\ud800"]}, ArgumentError, "surrogate"),
        ({"namespace": ["x"]}, TypeError, "namespace"),
        ({"namespace": None}, TypeError, "namespace"),
        ({"stream": "x"}, TypeError, "stream"),
        ({"params": {"temperature": 0}}, TypeError, "SamplingParams"),
        ({"regex": "("}, ConstraintError, ""),
        ({"choices": []}, ConstraintError, ""),
        ({"choices": "yes"}, TypeError, "choices"),
        ({"regex": "a", "choices": ["a"]}, TypeError, "exclude"),
        ({"json_schema": {"type": "objekt"}}, ConstraintError, ""),
        ({"token_healing": 1}, TypeError, "token_healing"),
        ({"echo": 1}, TypeError, "echo"),
        ({"best_of": 2, "n": 3}, ArgumentError, "below n=3"),
        ({"best_of": 2, "stream": True}, ArgumentError, "exclude each other"),
        ({"logprobs_start": 1}, ArgumentError, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "logprobs_start": 2}, ArgumentError, "the prompt has 1 tokens"),
        ({"prompt_logprobs": 0, "token_healing": True}, ArgumentError, "token_healing= may replace"),
        ({"logprob_token_ids": [1]}, ArgumentError, "logprobs=0"),
        ({"logprobs": 0, "logprob_token_ids": [99999]}, PalmetteError, "99999 in logprob_token_ids"),
        ({"stop_regex": "a*"}, ConstraintError, "empty text"),
        ({"stop_regex": ["a", "b$"]}, ConstraintError, "'b$': an anchor"),
        ({"stop_regex": "[ab]*a[ab]{30}"}, ConstraintError, "states"),
        ({"stop_token_ids": [99999]}, PalmetteError, "99999"),
    ],
)
def test_wrong_arguments_are_said_at_once(
    tiny_engine: Make, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    engine = tiny_engine()
    with pytest.raises(error) as caught:
        engine.generate("x", **options)
    assert says in str(caught.value)
    assert engine.stats()["computed_tokens"] == 0


def test_a_misspelt_setting_gets_a_suggestion() -> None:
    from palmette.runtime.engine import Engine

    with pytest.raises(TypeError, match="did you mean 'kv_tokens'"):
        Engine("smollm2-135m", kv_token=4096)


def test_wrong_prompts(tiny_engine: Make) -> None:
    engine = tiny_engine()
    for prompt, error in (
        ({"role": "user"}, TypeError),
        ([99999], PalmetteError),
        ([1, "a"], TypeError),
        (7, TypeError),
        (b"hello", TypeError),
    ):
        with pytest.raises(error):
            engine.generate(prompt)


def test_messages_are_rendered_by_the_template(tiny_engine: Make) -> None:
    engine = tiny_engine()
    out = engine.generate([{"role": "user", "content": "hi <|im_end|>"}], max_tokens=1)
    rendered = "<|im_start|>user\nhi "
    tail = "<|im_end|>\n<|im_start|>assistant\n"
    # The markers of the template are one token each; the one that the user wrote stays ten bytes.
    assert out.usage.prompt_tokens == len(rendered) - 11 + len("<|im_end|>") + len(tail) - 10 - 12 + 2


@pytest.mark.parametrize(
    "settings",
    [{"kv_tokens": True}, {"policy": None}, {"cache": "no"}, {"seed": "x"}, {"seed": None}, {"max_running": 0}],
)
def test_wrong_settings_are_said_at_once(tiny_engine: Make, settings: dict[str, Any]) -> None:
    with pytest.raises((PalmetteError, TypeError), match=next(iter(settings))):
        tiny_engine(**settings)


def test_a_schema_nested_without_end_is_a_constraint_error(tiny_engine: Make) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ConstraintError):
        tiny_engine().generate("q", json_schema=schema)


def test_one_wrong_prompt_ends_the_whole_async_list(tiny_engine: Make) -> None:
    engine = tiny_engine()

    async def run() -> int:
        with pytest.raises(PalmetteError, match="99999"):
            await engine.agenerate([[1], [99999]], max_tokens=500, ignore_eos=True)
        await asyncio.sleep(0)
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(run()) == 0
    assert engine.stats()["sampled_tokens"] < 400


@pytest.mark.timeout(30)
def test_in_a_forked_process_the_engine_refuses_and_does_not_hang(tiny_engine: Make) -> None:
    engine = tiny_engine()
    engine.generate([1], max_tokens=1)
    calls = (
        lambda: engine.generate([1], max_tokens=1),
        lambda: engine.generate("x", regex="a", max_tokens=1),
        lambda: engine.score("x", ["a", "b"]),
        engine.stats,
    )
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        refused = 0
        try:
            for call in calls:
                try:
                    call()
                except BackendError as error:
                    refused += "parent process" in str(error)
            engine.close()
        finally:
            # Whatever happened: this process must not go on as a second pytest.
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    assert len(engine.generate([1], max_tokens=2, ignore_eos=True).tokens) == 2


@pytest.mark.timeout(30)
def test_a_wake_inside_a_wake_does_not_lock_up(tiny_engine: Make) -> None:
    """A garbage collection may end a forgotten stream just where another command is handed over."""
    engine = tiny_engine()
    loop = engine._loop

    class Inbox:
        def __init__(self, inner: Any) -> None:
            self.inner, self.collects = inner, True

        def put(self, command: Any) -> None:
            if self.collects:
                self.collects = False
                loop.wake()
            self.inner.put(command)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    loop._inbox = Inbox(loop._inbox)
    assert engine.check_integrity() == []


def test_what_promises_the_same_bits(tiny_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiny_engine().model.batch_invariant
    monkeypatch.setenv("PALMETTE_KERNELS", "reference")
    model = tiny_engine().model
    assert model.batch_invariant
    model.dtype = "bfloat16"
    assert not model.batch_invariant


def test_a_stream_refuses_a_bad_request_at_once(tiny_engine: Make) -> None:
    engine = tiny_engine()
    with pytest.raises(ContextLengthError):
        engine.generate([1] * 5000, stream=True)
    with pytest.raises(ConstraintError):
        engine.generate("x", stream=True, regex="(")
    assert engine.generate([]) == []


def test_a_kv_cache_larger_than_the_memory(tiny_engine: Make) -> None:
    with pytest.raises(ArgumentError, match="GiB"):
        tiny_engine(kv_tokens=10**14)


def test_nothing_left_to_draw_is_said(tiny_engine: Make) -> None:
    engine = tiny_engine()
    with pytest.raises(ArgumentError, match="no token is allowed"):
        engine.generate("x", stop_token_ids=list(range(engine.tokenizer.n_tokens)), min_tokens=3)
    with pytest.raises(ConstraintError):
        engine.generate("x", regex="(?:a{1000}){1000}", max_tokens=4)


def test_programs_on_an_engine_use_four_threads_beside_the_callers(tiny_engine: Make) -> None:
    engine = tiny_engine()
    before, seen = threading.active_count(), []

    @pt.function
    def program(s: Any, i: int) -> None:
        s += f"row {i}: " + pt.gen("x", regex="[a-z]{2}")
        with s.fork(8) as branches:
            for branch in branches:
                branch += pt.gen("y", max_tokens=1)
        seen.append(threading.active_count())

    # `before` counts the engine's own thread.
    program.run_batch([{"i": i} for i in range(40)], backend=engine, progress_bar=True)
    assert max(seen) - (before - 1) <= 4
