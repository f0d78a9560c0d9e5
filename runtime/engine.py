"""`Engine`: a model and its runtime inside this process."""

from __future__ import annotations

import asyncio
import queue
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from palmette.arguments import flag, integer, unknown_keyword
from palmette.errors import ArgumentError, CapabilityError
from palmette.runtime import options
from palmette.runtime.core import EngineCore
from palmette.runtime.group import Group
from palmette.runtime.intake import Intake
from palmette.runtime.loop import EngineLoop, closed_error
from palmette.runtime.models.model import Model, load_model
from palmette.runtime.models.registry import resolve
from palmette.runtime.pins import PinnedPrefix, Pins
from palmette.runtime.prompt import prompt_tokens, prompts_of
from palmette.runtime.protocol import (
    Capabilities,
    Delta,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Output,
    SamplingParams,
    ScoreRequest,
    ScoreResult,
)
from palmette.runtime.settings import EngineSettings, refuse_unknown
from palmette.runtime.stream import Chunk, Stream, chunks
from palmette.runtime.tier import open_disk
from palmette.runtime.tokenizer import Tokenizer
from palmette.torch_later import set_threads

_SETTINGS = tuple(EngineSettings.__dataclass_fields__)


class Engine:
    """A model in this process, with prefix cache, continuous batching and constrained decoding.

    model: a name that palmette knows ("smollm2-135m"), a folder, a .gguf file, or a hub id. dtype: what the weights are
    held in: "fp32", "bf16", "fp16". quantization: the same, or blocks: "q8_0", "q4_0", "q4_1", where the kernels read
    them (`palmette doctor` tells). Neither: as stored; blocks that the kernels do not read become fp32.
    kv_tokens: size of the KV cache in tokens. max_running: requests in progress at once; max_step_tokens: tokens that
    one step computes (prefill chunks are cut to it). threads: CPU threads, for the whole process. seed: what requests
    without a seed derive theirs from.
    deterministic: True demands bit-identical results in every batch and schedule, and fails where they cannot be had.
    None takes them where the kernels have them, which on the CPU they do (`palmette doctor` tells). False says that
    nobody relies on them: they may be given up where that is faster, which no kernel so far is, so that today it gives
    what None does.

    cache: keep prefixes for later requests; "flat" finds whole prompts again only (for comparisons). cache_dir: a
    folder in which they are kept across restarts too, at most cache_dir_bytes of them. policy, who is let in first:
    "lpm" (longest cached prefix), "fcfs" (first come), "dfs" (depth first over the prefix tree), "priority" (the
    priority= of requests), "fair" (the tenant= that was served least), "random". eviction, which cached prefix goes
    first: "lru", "lfu", "fifo", "priority", "size". dedupe: of requests that begin alike, one computes the common part,
    the others wait for it. hints: what a program said so far is kept for its next request while others can wait.
    speculation: what a request may go on with is looked up in its own text and in those of requests that began alike,
    and computed ahead: "auto" where that is likely to be quicker and `deterministic` can be had, a number up to so many
    tokens wherever there is a guess, "off" never. Tokens and log-probabilities are the same.

    An engine is a backend for programs, and can be used by itself: `generate`, `agenerate`, `score`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        quantization: str | None = None,
        kv_tokens: int | None = None,
        max_running: int = 64,
        max_step_tokens: int = 512,
        cache: bool | Literal["flat"] = True,
        cache_dir: str | Path | None = None,
        cache_dir_bytes: int = 8 << 30,
        policy: str = "lpm",
        eviction: str = "lru",
        dedupe: bool = True,
        hints: bool = True,
        speculation: int | Literal["auto", "off"] = "auto",
        threads: int | None = None,
        deterministic: bool | None = None,
        seed: int = 0,
        **unknown: Any,
    ) -> None:
        refuse_unknown(unknown, Engine.__init__.__kwdefaults__ or {})
        settings = EngineSettings(
            kv_tokens=kv_tokens,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            cache=cache,
            cache_dir=cache_dir,
            cache_dir_bytes=cache_dir_bytes,
            policy=policy,
            eviction=eviction,
            dedupe=dedupe,
            hints=hints,
            speculation=speculation,
            seed=seed,
        )
        if deterministic is not None:
            flag("Engine()", "deterministic", deterministic)
        if threads is not None:
            set_threads(integer("Engine()", "threads", threads, least=1))
        loaded, tokenizer = load_model(resolve(model), dtype=dtype, quantization=quantization, device=device)
        if deterministic and not loaded.batch_invariant:
            raise CapabilityError(
                f"deterministic=True: results are not bit-identical here: {loaded.promise.reason}",
                hint='use dtype="fp32" on the CPU, or leave deterministic out',
            )
        self._start(loaded, tokenizer, settings)

    @classmethod
    def from_model(cls, model: Model, tokenizer: Tokenizer, **settings: Any) -> Engine:
        """An engine around a model that is loaded already; keywords are the fields of EngineSettings."""
        refuse_unknown({name: value for name, value in settings.items() if name not in _SETTINGS}, {})
        engine = cls.__new__(cls)
        engine._start(model, tokenizer, EngineSettings(**settings))
        return engine

    def _start(self, model: Model, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.kv_tokens = settings.kv_size(model.kv_bytes_per_token)
        self._keeps = bool(settings.cache)
        self._hints = settings.hints and self._keeps
        self._pins = Pins(self.kv_tokens)
        try:
            core = EngineCore(
                model,
                token_count=tokenizer.n_tokens,
                kv_tokens=self.kv_tokens,
                max_running=settings.max_running,
                max_step_tokens=settings.max_step_tokens,
                policy=settings.policy,
                cache=settings.cache,
                eviction=settings.eviction,
                dedupe=settings.dedupe,
                hints=settings.hints,
                disk=open_disk(model, settings),
                speculation=settings.speculation,
            )
        except MemoryError:
            size = self.kv_tokens * model.kv_bytes_per_token / 2**30
            raise ArgumentError(
                f"Engine(): a KV cache of {self.kv_tokens} tokens takes {size:,.1f} GiB, more than there is",
                hint="lower kv_tokens",
            ) from None
        self._loop = EngineLoop(core)
        self._intake = Intake(
            model, tokenizer, self._loop, kv_tokens=self.kv_tokens, pins=self._pins, seed=settings.seed
        )
        # Not a bound method of self: the engine must stay collectable.
        self._finalizer = weakref.finalize(self, self._intake.close)

    # -- as a backend of programs (protocol.Backend) -----------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="engine", holds=self._hints, account=True)

    @property
    def codec(self) -> Tokenizer:
        return self.tokenizer

    async def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Deltas (if the request streams), then one terminal event. Closing the iterator cancels the request."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()
        group = self._intake.generate(request, partial(_post, loop, events))
        try:
            while True:
                event = await events.get()
                yield event
                if not isinstance(event, Delta):
                    return
        finally:
            self._intake.cancel(group)

    async def score_async(self, request: ScoreRequest) -> ScoreResult:
        """Score the request's choices."""
        future, jobs = self._intake.score(request)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._intake.cancel_jobs(jobs)
            raise

    def leave(self, family: str) -> None:
        """See protocol.Backend.leave."""
        self._loop.post(lambda core: core.scheduler.leave(family))

    # -- by itself ---------------------------------------------------------------------------------------------------

    def generate(
        self, prompt: Any, params: SamplingParams | None = None, *, stream: bool = False, **keywords: Any
    ) -> Any:
        """Continue a prompt: text, token ids, chat messages, or a list of any of these (run as one batch).

        Keywords are the fields of SamplingParams and one constraint (regex=, choices=, json_schema=, grammar=,
        structural_tag=). on_unsupported="validate" (with json_schema=): what cannot be enforced of the schema is left
        out, the text checked when it is there, and drawn again at most `retries` times (3).
        Returns an Output; a list of Outputs for a list of prompts or for n > 1; with stream=True (one prompt) an
        iterator of Chunks. A text prompt may spell control tokens; the contents of messages never can.

        Also keywords: namespace (str; requests share cached prefixes only within one), priority (int, higher first,
        under policy="priority"), tenant (str; whose share is used up, under policy="fair").
        """
        prompts, many = prompts_of(prompt)
        requests = [self._request(each, params, keywords, stream) for each in prompts]
        if stream:
            if many:
                raise TypeError("stream=True takes one prompt, not a list")
            return self._stream(requests[0])
        events: list[queue.SimpleQueue[Event]] = [queue.SimpleQueue() for _ in requests]
        groups: list[Group] = []
        try:
            for request, box in zip(requests, events, strict=True):
                groups.append(self._intake.generate(request, box.put))
            results = [_outputs(box.get()) for box in events]
        except BaseException:
            for group in groups:
                self._intake.cancel(group)
            raise
        return results if many else results[0]

    async def agenerate(
        self, prompt: Any, params: SamplingParams | None = None, *, stream: bool = False, **keywords: Any
    ) -> Any:
        """The same as `generate`, to be awaited; with stream=True the awaited value is an async iterator."""
        prompts, many = prompts_of(prompt)
        requests = [self._request(each, params, keywords, stream) for each in prompts]
        if stream:
            if many:
                raise TypeError("stream=True takes one prompt, not a list")
            return self._astream(requests[0])
        tasks = [asyncio.ensure_future(self._one(request)) for request in requests]
        try:
            results = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        return results if many else results[0]

    def score(
        self,
        prompt: Any,
        choices: Sequence[str],
        *,
        method: str = "probability",
        temperature: float = 0.0,
        seed: int | None = None,
        namespace: str = "",
        priority: int = 0,
        tenant: str = "",
        **unknown: Any,
    ) -> ScoreResult:
        """Which of `choices` continues the prompt (text, token ids or messages), and the distribution over them.
        namespace, priority, tenant: see `generate`."""
        for keyword in unknown:
            raise unknown_keyword("score()", keyword, ("method", "temperature", "seed", *options.ACCOUNT))
        prompts, many = prompts_of(prompt)
        if many:
            raise TypeError("score takes one prompt, not a list")
        request = ScoreRequest(
            prompt_tokens(self.tokenizer, prompts[0]),
            options.choices("score()", choices),
            method,  # type: ignore[arg-type]
            temperature,
            seed,
            namespace,
            priority=priority,
            tenant=tenant,
        )
        future, jobs = self._intake.score(request)
        try:
            return future.result()
        except BaseException:
            self._intake.cancel_jobs(jobs)
            raise

    def pin(self, prompt: Any, *, namespace: str = "") -> PinnedPrefix:
        """Compute the KV of a prompt (text, token ids or messages) and keep it cached, also through `flush_cache`,
        until the returned object is released; it is a context manager.

        ArgumentError where pins would take more than half of the KV cache, CapabilityError where there is no prefix
        cache.
        """
        if not self._keeps:
            raise CapabilityError("pin() needs the prefix cache, which cache=False turns off", hint="use cache=True")
        prompts, many = prompts_of(prompt)
        if many:
            raise TypeError("pin takes one prompt, not a list")
        tokens = prompt_tokens(self.tokenizer, prompts[0])
        return self._pins.pin(
            tokens,
            namespace,
            loop=self._loop,
            compute=partial(self.generate, list(tokens), max_tokens=0, namespace=namespace),
        )

    def flush_cache(self) -> int:
        """Forget every cached prefix that no request is using; the number of tokens freed."""
        return self._loop.call(lambda core: core.cache.clear())

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and how the KV cache is filled now (tokens)."""

        def read(core: EngineCore) -> dict[str, Any]:
            cache = core.cache
            return {
                **asdict(core.counters),
                **asdict(core.scheduler.counters),
                "running": len(core.scheduler.running),
                "waiting": len(core.scheduler.waiting),
                "kv_tokens": cache.pool.size,
                "kv_free": cache.pool.free,
                "kv_cached": cache.cached,
                "kv_evictable": cache.evictable,
                "cache": cache.stats._asdict(),
                **({"disk": core.tier.disk.stats._asdict()} if core.tier is not None else {}),
            }

        return self._loop.call(read)

    def check_integrity(self) -> list[str]:
        """Faults of the KV bookkeeping, in words; [] when all is sound."""
        return self._loop.call(lambda core: core.check_integrity())

    def snapshot(self) -> Any:
        """The prefix tree as plain data (radix_cache.view.TreeView)."""
        return self._loop.call(lambda core: core.cache.snapshot())

    def close(self) -> None:
        """Cancel what is in flight and free the model. The engine cannot be used afterwards."""
        self._finalizer()

    @property
    def is_open(self) -> bool:
        return self._loop.is_open

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _request(
        self, prompt: Any, params: SamplingParams | None, keywords: Mapping[str, Any], stream: bool
    ) -> GenerateRequest:
        account = {name: value for name, value in keywords.items() if name in options.ACCOUNT}
        rest = {name: value for name, value in keywords.items() if name not in options.ACCOUNT}
        return GenerateRequest(
            prompt_tokens(self.tokenizer, prompt),
            options.sampling_params(params, rest),
            options.constraint(rest),
            stream=flag("generate()", "stream", stream),
            **account,
        )

    def _stream(self, request: GenerateRequest) -> Stream:
        def start(emit: Callable[[Event], None]) -> Callable[[], None]:
            # By the engine, not its intake: as long as somebody reads, it is not closed for being forgotten.
            return partial(self._cancel, self._intake.generate(request, emit))

        return Stream(start)

    def _cancel(self, group: Group) -> None:
        self._intake.cancel(group)

    async def _astream(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        async for event in self.submit(request):
            for chunk in chunks(event):
                yield chunk

    async def _one(self, request: GenerateRequest) -> Output | list[Output]:
        async for event in self.submit(request):
            if not isinstance(event, Delta):
                return _outputs(event)
        raise closed_error()


def _post(loop: asyncio.AbstractEventLoop, events: asyncio.Queue[Event], event: Event) -> None:
    # A loop that was closed has nobody left who waits; its request is cancelled by the iterator's end.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(events.put_nowait, event)


def _outputs(event: Event) -> Output | list[Output]:
    """What a terminal event stands for: the sample, the samples where there are several; raises its error."""
    if isinstance(event, Failed):
        raise event.error
    assert isinstance(event, Finished)
    return event.outputs[0] if len(event.outputs) == 1 else list(event.outputs)
