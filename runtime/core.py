"""The engine's loop body. Everything that a request goes through between admission and its last event is in `step`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from palmette.errors import BackendError, Cancelled, ContextLengthError
from palmette.kernels.ragged import RaggedBatch
from palmette.radix_cache.cache import RadixCache
from palmette.radix_cache.disk import DiskTier
from palmette.radix_cache.eviction import POLICIES as EVICTION
from palmette.radix_cache.slots import SlotPool
from palmette.runtime.draft import rows_of
from palmette.runtime.job import Job, Span
from palmette.runtime.models.model import Model
from palmette.runtime.native_sampler import drawn_natively
from palmette.runtime.request import GenerateJob
from palmette.runtime.sampler import Drawn, Row, sample
from palmette.runtime.scheduler import Scheduler
from palmette.runtime.shares import Share
from palmette.runtime.speculation import Setting, Speculation
from palmette.runtime.tier import KVTier
from palmette.torch_later import Array


@dataclass(slots=True)
class Counters:
    """What the engine has done since it started. They only grow. requests: samples and scores that were let into the
    engine; each ends as one of finished, failed (by an error) and cancelled. drafted_tokens: computed by speculation
    before they were drawn; accepted_tokens: those of them that were drawn, and so count as computed and as sampled."""

    requests: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    sampled_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0


class EngineCore:
    """Jobs in, events out, one step at a time; used by one thread.

    token_count: ids that the tokenizer knows. kv_tokens: size of the KV cache, in tokens. cache: whether prefixes are
    kept for later requests. speculation: see Speculation.
    """

    def __init__(
        self,
        model: Model,
        *,
        token_count: int,
        kv_tokens: int,
        max_running: int = 64,
        max_step_tokens: int = 512,
        policy: str = "lpm",
        cache: bool | Literal["flat"] = True,
        eviction: str = "lru",
        dedupe: bool = True,
        hints: bool = True,
        disk: DiskTier | None = None,
        speculation: Setting = "off",
    ) -> None:
        self.model = model
        pool = SlotPool(kv_tokens)
        self.cache = RadixCache(pool, policy=EVICTION[eviction](), enabled=bool(cache), exact=cache == "flat")
        self.kv = model.new_kv(kv_tokens)
        self.tier = KVTier(disk, self.kv) if disk is not None else None
        self.scheduler = Scheduler(
            self.cache,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            policy=policy,
            dedupe=dedupe,
            hints=hints,
            tier=self.tier,
        )
        self.counters = Counters()
        if speculation == "auto" and not model.batch_invariant:
            # A draft makes another batch: where that makes other bits, it is only drafted if somebody says so.
            speculation = "off"
        self.speculation = Speculation(speculation, self.cache, self.scheduler.policy)
        self._sample = sample if model.sampler is None else drawn_natively(model.sampler)
        self._masks = ThreadPoolExecutor(1, thread_name_prefix="palmette-masks")
        self._token_count = token_count
        self._words = (model.vocab_width + 31) // 32

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, job: Job) -> None:
        """Take in a job whose constraint is compiled and that fits the KV cache."""
        if not job.goes_on:
            self.counters.requests += 1
            self.counters.prompt_tokens += job.prompt_length
        job.started = time.monotonic()
        if job.cancelled:
            # Given up while its prompt was healed, say: it must not draw a token in the next step.
            self._give_up(job)
            return
        if isinstance(job, GenerateJob):
            try:
                job.begin()
            except Exception as error:
                job.fail(_broken("the beginning of a request", error))
        if job.done:
            self._end(job)
            return
        try:
            self.scheduler.add(job)
        except Exception as error:
            job.fail(_broken("the beginning of a request", error))
            raise

    def step(self, *, patient: bool = False) -> bool:
        """One pass: plan, compute, draw, commit. False where nothing could be done: with `patient`, that is also where
        all that keeps a request out is held for programs, who may be about to go on."""
        self._abort_cancelled()
        plan = self.scheduler.plan()
        if not plan:
            return self._unstick(patient)
        self.speculation.draft(plan, self.scheduler.max_step_tokens)
        work = [(share, share.job.spans(share.n)) for share in plan]
        drawing = [share.job for share, spans in work if spans and spans[-1].draws]
        begun = time.perf_counter()
        masks = self._masks.submit(self._start_rows, drawing)
        try:
            logits = self._forward([(job, span) for (job, _), spans in work for span in spans])
            rows = masks.result()
            drawn = iter(self._sample(logits[: len(rows)], rows) if rows else ())
        except Exception as error:
            self._fail(plan, masks, error)
            return True
        computed = sum([span.end - span.start for _, spans in work for span in spans])
        self.speculation.note(computed, time.perf_counter() - begun)
        self._commit(work, drawn, logits[len(rows) :])
        return True

    def close(self) -> None:
        """End whatever is in flight as cancelled, and the worker thread."""
        self.fail_all(Cancelled("the engine was closed", hint="keep the engine open until its requests are done"))
        self._masks.shutdown()
        if self.tier is not None:
            self.tier.disk.close()

    def fail_all(self, error: BaseException) -> None:
        """End every job with `error`."""
        jobs = [*self.scheduler.running, *self.scheduler.waiting]
        for job in jobs:
            job.fail(error)
        for job in jobs:
            # All are answered. The bookkeeping may be what broke; what it cannot take back goes with the engine.
            with suppress(Exception):
                self._end(job)

    def check_integrity(self) -> list[str]:
        """Faults of slots and tree in words; [] when all is sound."""
        private = []
        for job in self.scheduler.running:
            held = job.lease.length if job.lease is not None else 0
            private.append(job.slots[held : job.computed])
        return self.cache.check_integrity(private)

    # -- the parts of a step, in order ------------------------------------------------------------------------------

    def _abort_cancelled(self) -> None:
        for job in [*self.scheduler.running, *self.scheduler.waiting]:
            if job.cancelled and not job.done:
                self._give_up(job)

    def _give_up(self, job: Job) -> None:
        if isinstance(job, GenerateJob):
            job.finish("cancelled")
        else:
            job.fail(Cancelled("the score request was cancelled"))
        self._end(job, given_up=True)

    def _unstick(self, patient: bool) -> bool:
        """Nobody could be served. Where programs hold what is needed, a hold gives way; where a job cannot get its
        slots though nothing else runs or is held, it never can."""
        if self.scheduler.held_up:
            if not patient:
                self.scheduler.press()
            return not patient
        job = self.scheduler.give_up()
        if job is not None:
            pinned = self.cache.pinned
            job.fail(
                ContextLengthError(
                    f"the request may need {job.peak} KV slots; of {self.cache.pool.size} there are {pinned} pinned",
                    hint="unpin a prefix, give the engine more kv_tokens, or ask for fewer max_tokens",
                )
            )
            self._end(job)
        return job is not None

    def _start_rows(self, drawing: Sequence[Job]) -> list[Row]:
        """What the sampler needs for each token that is drawn, masks filled: runs beside the forward pass."""
        return [row for job in drawing if isinstance(job, GenerateJob) for row in rows_of(job, self._words)]

    def _forward(self, runs: Sequence[tuple[Job, Span]]) -> Array:
        """Logits [R, V]: first the rows that a token is drawn from, then those that jobs read, each in plan order."""
        if not runs:
            return np.empty((0, self.model.vocab_width), np.float32)
        batch = build_batch(runs)
        self.counters.steps += 1
        self.counters.computed_tokens += len(batch.tokens)
        logits = self.model.forward(batch, self.kv)
        # Rows of the output matrix beyond the vocabulary are padding, whatever their logits say.
        logits[:, self._token_count :] = -np.inf
        return logits

    def _commit(self, work: Sequence[tuple[Share, Sequence[Span]]], drawn: Iterator[Drawn], read: Array) -> None:
        """Each job takes its tokens and its logits; what goes wrong in one job ends that job only."""
        at = 0
        for share, spans in work:
            job, rows = share.job, [row for span in spans for row in span.rows]
            computed = job.computed
            own = list(islice(drawn, len(spans[-1].draws) if spans else 0))
            try:
                self._advance(share, own, rows, read[at : at + len(rows)])
            except Exception as error:
                job.fail(_broken("a request", error))
                if job.computed == computed:
                    self.scheduler.drop(share)
            at += len(rows)
            if isinstance(job, GenerateJob) and job.draft is not None:
                self._settle(job)
            if job.done:
                self._end(job)

    def _advance(self, share: Share, drawn: Sequence[Drawn], rows: Sequence[int], logits: Array) -> None:
        job = share.job
        self.scheduler.commit(share)
        if rows:
            job.read(rows, logits)
        if not drawn:
            job.go_on(None)
        for number, token in enumerate(drawn):
            if number and (job.draft is None or not job.draft.goes_on(job, number)):
                break
            job.first_token = job.first_token or time.monotonic()
            self.counters.sampled_tokens += 1
            job.go_on(token)

    def _settle(self, job: GenerateJob) -> None:
        """What the job's own tokens have left of its draft."""
        drafted, right = self.speculation.settle(job)
        self.counters.drafted_tokens += drafted
        self.counters.accepted_tokens += right
        self.counters.computed_tokens -= drafted - right

    def _end(self, job: Job, *, given_up: bool = False) -> None:
        """Hand back all that a finished job holds, and answer. given_up: its caller wants nothing more of it."""
        try:
            self.scheduler.finish(job)
        except Exception as error:
            # It is in nobody's list any more: whoever ends the rest would not find it.
            job.fail(_broken("the end of a request", error))
            raise
        if not job.goes_on:
            self.counters.cached_tokens += job.cached
        if isinstance(job, GenerateJob):
            self.counters.forced_tokens += job.forced
            self.speculation.keep(job)
            if not job.failed:
                try:
                    job.group.finish(job.output(time.monotonic()))
                except Exception as error:
                    job.fail(_broken("the end of a request", error))
        if given_up:
            self.counters.cancelled += 1
        elif job.failed:
            self.counters.failed += 1
        else:
            self.counters.finished += 1

    def _fail(self, plan: Sequence[Share], masks: Future[list[Row]], error: Exception) -> None:
        """A step broke: its jobs end with the error; their slots, whose KV is not to be trusted, go back."""
        masks.cancel()
        failure = _broken("a step", error)
        for share in plan:
            if isinstance(share.job, GenerateJob):
                self.speculation.settle(share.job)
            self.scheduler.drop(share)
            share.job.fail(failure)
            self._end(share.job)


def _broken(where: str, error: Exception) -> BackendError:
    failure = BackendError(
        f"the engine failed in {where}: {error!r}", hint="this is a fault of palmette or of its model; please report it"
    )
    failure.__cause__ = error
    return failure


def build_batch(runs: Sequence[tuple[Job, Span]]) -> RaggedBatch:
    """The runs of a step as index arrays (see RaggedBatch): logits first of those that draw, then of those read."""
    tokens, positions, slots, kv = [], [], [], []
    seg_len, kv_len, drawn, read = [], [], [], []
    at = 0
    for job, span in runs:
        size = span.end - span.start
        tokens.append(job.tokens[span.start : span.end])
        slots.append(job.slots[span.start : span.end])
        positions.append(np.arange(len(span.path) - size, len(span.path)))
        kv.append(job.slots[span.path])
        seg_len.append(size)
        kv_len.append(len(span.path))
        drawn.extend(at + row - span.start for row in span.draws)
        read.extend(at + row - span.start for row in span.rows)
        at += size
    return RaggedBatch(
        tokens=_int64(np.concatenate(tokens)),
        positions=_int64(np.concatenate(positions)),
        slots=_int64(np.concatenate(slots)),
        seg_start=_int64(np.concatenate([[0], np.cumsum(seg_len)])),
        kv_start=_int64(np.concatenate([[0], np.cumsum(kv_len)])),
        kv_slots=_int64(np.concatenate(kv)),
        out_rows=_int64(np.array(drawn + read)),
    )


def _int64(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.int64)
