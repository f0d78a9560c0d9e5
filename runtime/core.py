"""The engine's loop body. Everything that a request goes through between admission and its last event is in `step`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from palmette.errors import BackendError, Cancelled, ContextLengthError
from palmette.kernels.ragged import RaggedBatch
from palmette.radix_cache.cache import RadixCache
from palmette.radix_cache.slots import SlotPool
from palmette.runtime.models.model import Model
from palmette.runtime.request import GenerateJob, Job
from palmette.runtime.sampler import Drawn, Row, sample
from palmette.runtime.scheduler import Scheduler, Share
from palmette.runtime.score import ScoreJob


@dataclass(slots=True)
class Counters:
    """What the engine has done since it started. They only grow."""

    requests: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    sampled_tokens: int = 0
    forced_tokens: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0


class EngineCore:
    """Jobs in, events out, one step at a time; used by one thread.

    token_count: ids that the tokenizer knows. kv_tokens: size of the KV cache, in tokens. cache: whether prefixes are
    kept for later requests.
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
        cache: bool = True,
    ) -> None:
        self.model = model
        self.cache = RadixCache(SlotPool(kv_tokens), enabled=cache)
        self.kv = model.new_kv(kv_tokens)
        self.scheduler = Scheduler(self.cache, max_running=max_running, max_step_tokens=max_step_tokens, policy=policy)
        self.counters = Counters()
        self._masks = ThreadPoolExecutor(1, thread_name_prefix="palmette-masks")
        self._token_count = token_count
        self._words = (model.vocab_width + 31) // 32

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, job: Job) -> None:
        """Take in a job whose constraint is compiled and that fits the KV cache."""
        self.counters.requests += 1
        self.counters.prompt_tokens += job.prompt_length
        job.started = time.monotonic()
        if isinstance(job, GenerateJob):
            try:
                job.begin()
            except Exception as error:
                job.fail(_broken("the beginning of a request", error))
        if job.done:
            self._end(job)
        else:
            self.scheduler.waiting.append(job)

    def step(self) -> None:
        """One pass: plan, compute, draw, commit."""
        self._abort_cancelled()
        plan = self.scheduler.plan()
        if not plan:
            self._refuse_stuck()
            return
        masks = self._masks.submit(self._start_rows, plan)
        try:
            logits = self._forward(plan)
            rows = masks.result()
            drawn = sample(logits[: len(rows)], rows) if rows else []
        except Exception as error:
            self._fail(plan, masks, error)
            return
        self._commit(plan, drawn, logits[len(rows) :])

    def close(self) -> None:
        """End whatever is in flight as cancelled, and the worker thread."""
        self.fail_all(Cancelled("the engine was closed", hint="keep the engine open until its requests are done"))
        self._masks.shutdown()

    def fail_all(self, error: BaseException) -> None:
        """End every job with `error`."""
        for job in [*self.scheduler.running, *self.scheduler.waiting]:
            job.fail(error)
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
                self.counters.cancelled += 1
                if isinstance(job, GenerateJob):
                    job.finish("cancelled")
                else:
                    job.fail(Cancelled("the score request was cancelled"))
                self._end(job)

    def _refuse_stuck(self) -> None:
        """Nothing runs and the first job in line cannot be let in: it never can."""
        if self.scheduler.waiting and not self.scheduler.running:
            job = self.scheduler.waiting[0]
            job.fail(
                ContextLengthError(
                    f"the request may need {job.peak} KV slots, more than can be freed",
                    hint="give the engine more kv_tokens, or ask for fewer max_tokens",
                )
            )
            self._end(job)

    def _start_rows(self, plan: Sequence[Share]) -> list[Row]:
        """What the sampler needs for each job that draws a token, masks filled: runs beside the forward pass."""
        return [job.row(self._words) for job in _drawing(plan)]

    def _forward(self, plan: Sequence[Share]) -> torch.Tensor:
        """Logits [R, V]: first the rows that a token is drawn from, in plan order, then those of score jobs."""
        if not any(share.n for share in plan):
            return torch.empty(0, self.model.vocab_width)
        batch = build_batch(plan)
        self.counters.steps += 1
        self.counters.computed_tokens += len(batch.tokens)
        with torch.inference_mode():
            logits = self.model.forward(batch, self.kv)
            # Rows of the output matrix beyond the vocabulary are padding, whatever their logits say.
            logits[:, self._token_count :] = -torch.inf
        return logits

    def _commit(self, plan: Sequence[Share], drawn: Sequence[Drawn], scored: torch.Tensor) -> None:
        """Each job takes its tokens or scores; what goes wrong in one job ends that job only."""
        tokens = {job.id: token for job, token in zip(_drawing(plan), drawn, strict=True)}
        at = 0
        for job, n in plan:
            spans = job.spans(n) if isinstance(job, ScoreJob) else []
            rows = [row for span in spans for row in span.rows]
            try:
                self._advance(job, n, tokens.get(job.id), rows, scored[at : at + len(rows)])
            except Exception as error:
                job.fail(_broken("a request", error))
            at += len(rows)
            if job.done:
                self._end(job)

    def _advance(self, job: Job, n: int, drawn: Drawn | None, rows: Sequence[int], scored: torch.Tensor) -> None:
        """`n` more tokens of the job are computed; `rows` of a score job have the logits `scored`."""
        was_prefilling = job.prefilling
        job.computed += n
        if was_prefilling:
            self._share(job)
        if isinstance(job, ScoreJob):
            for row, logits in zip(rows, scored, strict=True):
                job.read(row - job.prompt_length, logits)
            if job.remaining == 0:
                job.done = True
                job.answer(job)
        elif isinstance(job, GenerateJob):
            if drawn is not None:
                job.first_token = job.first_token or time.monotonic()
                self.counters.sampled_tokens += 1
                job.commit(drawn)
            elif job.remaining == 0:
                job.finish("length")
            if not job.done:
                job.show()

    def _share(self, job: Job) -> None:
        """Put what is computed of a prompt into the tree, so that siblings can take it from there at once."""
        size = min(job.computed, job.prompt_length)
        job.lease = self.cache.insert(job.tokens[:size], job.slots[:size], job.namespace, lease=job.lease)
        job.slots[:size] = job.lease.slots

    def _end(self, job: Job) -> None:
        """Hand back all that a finished job holds, and answer."""
        if job in self.scheduler.running:
            self._keep(job)
        self.scheduler.finish(job)
        self.counters.cached_tokens += job.cached
        if isinstance(job, GenerateJob):
            self.counters.forced_tokens += job.forced
            if not job.failed:
                try:
                    job.group.finish(job.output(time.monotonic()))
                except Exception as error:
                    job.fail(_broken("the end of a request", error))
        if job.failed:
            self.counters.failed += 1
        else:
            self.counters.finished += 1

    def _keep(self, job: Job) -> None:
        """What a job computed goes into the tree: a text whole, of an option tree the way to the chosen option."""
        if isinstance(job, ScoreJob):
            kept = job.kept[job.kept < job.computed]
            rest = np.setdiff1d(np.arange(job.prompt_length, job.computed), kept)
            self.cache.pool.release(job.slots[rest])
        else:
            kept = np.arange(job.computed)
        job.lease = self.cache.insert(job.tokens[kept], job.slots[kept], job.namespace, lease=job.lease)

    def _fail(self, plan: Sequence[Share], masks: Future[list[Row]], error: Exception) -> None:
        """A step broke: its jobs end with the error; their slots, whose KV is not to be trusted, go back."""
        masks.cancel()
        failure = _broken("a step", error)
        for job, n in plan:
            self.cache.pool.release(job.slots[job.computed : job.computed + n])
            job.fail(failure)
            self._end(job)


def _broken(where: str, error: Exception) -> BackendError:
    failure = BackendError(
        f"the engine failed in {where}: {error!r}", hint="this is a fault of palmette or of its model; please report it"
    )
    failure.__cause__ = error
    return failure


def _drawing(plan: Sequence[Share]) -> list[GenerateJob]:
    """The jobs of a plan that draw a token: all that they know is computed by this step."""
    return [
        job for job, n in plan if isinstance(job, GenerateJob) and n == job.remaining and job.new_tokens > job.generated
    ]


def build_batch(plan: Sequence[Share]) -> RaggedBatch:
    """The plan as index tensors (see RaggedBatch)."""
    tokens, positions, slots, kv = [], [], [], []
    seg_len, kv_len, drawn_rows, score_rows = [], [], [], []
    at = 0
    for job, n in plan:
        for span in job.spans(n):
            size = span.end - span.start
            tokens.append(job.tokens[span.start : span.end])
            slots.append(job.slots[span.start : span.end])
            positions.append(np.arange(len(span.path) - size, len(span.path)))
            kv.append(job.slots[span.path])
            seg_len.append(size)
            kv_len.append(len(span.path))
            rows = drawn_rows if isinstance(job, GenerateJob) else score_rows
            rows.extend(at + row - span.start for row in span.rows)
            at += size
    return RaggedBatch(
        tokens=_tensor(np.concatenate(tokens)),
        positions=_tensor(np.concatenate(positions)),
        slots=_tensor(np.concatenate(slots)),
        seg_start=_tensor(np.concatenate([[0], np.cumsum(seg_len)])),
        kv_start=_tensor(np.concatenate([[0], np.cumsum(kv_len)])),
        kv_slots=_tensor(np.concatenate(kv)),
        out_rows=_tensor(np.array(drawn_rows + score_rows)),
    )


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))
