"""From a request to jobs: checks that need model and tokenizer, the constraint's compile, the option tree.

What is wrong with a request becomes its terminal event here, before it reaches the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count

from palmette.errors import ContextLengthError, PalmetteError
from palmette.runtime import options
from palmette.runtime.constraints.compile import ConstraintCompiler, validate
from palmette.runtime.loop import EngineLoop
from palmette.runtime.models.model import Model
from palmette.runtime.protocol import Event, GenerateRequest, ScoreRequest, ScoreResult
from palmette.runtime.request import GenerateJob, Group, Job, TextTools
from palmette.runtime.sampler import mix64
from palmette.runtime.score import Boundary, OptionTree, ScoreJob, check_score, find_boundary, result_of
from palmette.runtime.tokenizer import Tokenizer


class Intake:
    """Takes requests from any thread, checks them, and hands jobs to the engine's loop."""

    def __init__(self, model: Model, tokenizer: Tokenizer, loop: EngineLoop, *, kv_tokens: int, seed: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._loop = loop
        self._kv_tokens = kv_tokens
        self._seed = seed
        self._requests = count()
        self._tools = TextTools(tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.encode)
        self._compiler = ConstraintCompiler(tokenizer.vocabulary)
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="palmette-compile")

    def generate(self, request: GenerateRequest, emit: Callable[[Event], None]) -> Group:
        """Send a request on its way. `emit` is called from other threads with its events."""
        group = Group(request, emit)
        try:
            self._loop.check()
            options.check_namespace(request.namespace)
            group.request = request = replace(request, params=options.checked(request.params))
            jobs = self._jobs(request, group)
            if request.constraint is None:
                for job in jobs:
                    self._loop.add(job)
            else:
                validate(request.constraint)
                self._workers.submit(self._compile, group, jobs)
        except Exception as error:
            group.fail(error)
        return group

    def score(self, request: ScoreRequest) -> tuple[Future[ScoreResult], list[ScoreJob]]:
        """Start a score request: the future of its result, and the jobs that work on it."""
        future: Future[ScoreResult] = Future()
        jobs: list[ScoreJob] = []
        try:
            self._start_score(request, future, jobs)
        except Exception as error:
            _fail(future, error)
        return future, jobs

    def cancel(self, group: Group) -> None:
        """End a request's samples within a step; nothing where they have ended."""
        if not group.ended:
            group.cancel()
            self._loop.wake()

    def cancel_jobs(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.cancelled = True
        self._loop.wake()

    def close(self) -> None:
        """End the engine's thread. A constraint that is being compiled is answered when it is done."""
        self._workers.shutdown(wait=False)
        self._loop.close()

    # -- generate ----------------------------------------------------------------------------------------------------

    def _jobs(self, request: GenerateRequest, group: Group) -> list[GenerateJob]:
        self._check_tokens((*request.params.stop_token_ids, *request.params.logit_bias), "stop_token_ids or logit_bias")
        prompt = self._checked_prompt(request.tokens)
        new_tokens = self._room(len(prompt), request.params.max_tokens)
        seed = request.params.seed if request.params.seed is not None else self._fresh_seed()
        return [GenerateJob(group, index, prompt, new_tokens, seed, self._tools) for index in range(request.params.n)]

    def _compile(self, group: Group, jobs: Sequence[GenerateJob]) -> None:
        """On a worker thread: the constraint's matcher for each sample, then on to the engine."""
        try:
            assert group.request.constraint is not None
            compiled = self._compiler.compile(group.request.constraint)
            for job in jobs:
                job.matcher, job.complete = compiled.start(), compiled.accepts
        except Exception as error:
            group.fail(error)
            return
        for job in jobs:
            self._loop.add(job)

    # -- score -------------------------------------------------------------------------------------------------------

    def _start_score(self, request: ScoreRequest, future: Future[ScoreResult], jobs: list[ScoreJob]) -> None:
        self._loop.check()
        check_score(request)
        options.check_namespace(request.namespace)
        boundary = find_boundary(
            self._checked_prompt(request.tokens),
            request.choices,
            healable=request.healable,
            bytes_of=self._tokenizer.token_bytes,
            encode=self._tokenizer.encode,
        )
        tree = OptionTree(boundary, self._tokenizer.token_bytes)
        plain: OptionTree | None = None
        if request.method == "unconditional_likelihood_normalized":
            start = Boundary((self._start_token(),), boundary.options, boundary.rest, boundary.healed)
            plain = OptionTree(start, self._tokenizer.token_bytes)
        seed = request.seed if request.seed is not None else self._fresh_seed()

        def answer(job: ScoreJob | BaseException) -> None:
            if isinstance(job, BaseException):
                _fail(future, job)
                return
            try:
                result = result_of(request, tree, job.usage(), unconditional=plain, seed=seed)
                job.keep([tree.nodes[at].inner for at in tree.path(result.index) if tree.nodes[at].inner >= 0])
            except Exception as error:
                _fail(future, error)
                return
            if future.set_running_or_notify_cancel():
                future.set_result(result)

        main = self._score_job(tree, request.namespace, answer)
        jobs.append(main)
        if plain is None:
            self._loop.add(main)
            return

        # The unconditional scores first: then the answer can be put together when the main job is done.
        def go_on(job: ScoreJob | BaseException) -> None:
            if isinstance(job, BaseException):
                answer(job)
            else:
                self._loop.add(main)

        first = self._score_job(plain, request.namespace, go_on)
        jobs.append(first)
        self._loop.add(first)

    def _score_job(
        self, tree: OptionTree, namespace: str, answer: Callable[[ScoreJob | BaseException], None]
    ) -> ScoreJob:
        boundary = tree.boundary
        job = ScoreJob(boundary.prompt, namespace, tree.inner_tokens(), tree.inner_parents(), tree.read, answer)
        longest = len(boundary.prompt) + max(map(len, boundary.options))
        if longest > self._model.max_context:
            raise ContextLengthError(
                f"the prompt and its longest option have {longest} tokens, the model's context holds "
                f"{self._model.max_context}",
                hint="shorten the prompt",
            )
        if job.peak > self._kv_tokens:
            raise ContextLengthError(
                f"the prompt and its options need {job.peak} KV slots, the engine has {self._kv_tokens}",
                hint="give the engine more kv_tokens, or fewer options",
            )
        return job

    # -- checks ------------------------------------------------------------------------------------------------------

    def _checked_prompt(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The prompt; an empty one stands for the start of a text, where the model has a token for that."""
        if not tokens:
            return (self._start_token(),)
        self._check_tokens(tokens, "the prompt")
        return tuple(tokens)

    def _start_token(self) -> int:
        tokenizer = self._tokenizer
        token = tokenizer.bos_id if tokenizer.bos_id is not None else min(tokenizer.eos_ids, default=None)
        if token is None:
            raise PalmetteError(
                "the prompt is empty", hint="this model has no token that begins a text: write something first"
            )
        return token

    def _check_tokens(self, tokens: Sequence[int], where: str) -> None:
        known = self._tokenizer.n_tokens
        for token in tokens:
            if not 0 <= token < known:
                raise PalmetteError(
                    f"token id {token} in {where} is not in the vocabulary", hint=f"ids go from 0 to {known - 1}"
                )

    def _room(self, prompt: int, max_tokens: int | None) -> int:
        """How many tokens may be generated behind a prompt of this length: what was asked for, or what fits."""
        need = 0 if max_tokens == 0 else 1
        if prompt + need > self._model.max_context:
            raise ContextLengthError(
                f"the prompt has {prompt} tokens, the model's context holds {self._model.max_context}",
                hint="shorten the prompt",
            )
        if prompt > self._kv_tokens:
            raise ContextLengthError(
                f"the prompt has {prompt} tokens, the KV cache holds {self._kv_tokens}",
                hint="give the engine more kv_tokens, or shorten the prompt",
            )
        # The last token that is drawn needs no slot.
        room = min(self._model.max_context - prompt, self._kv_tokens - prompt + 1)
        return room if max_tokens is None else min(room, max_tokens)

    def _fresh_seed(self) -> int:
        """A seed for a request without one: from the engine's seed and the request's number."""
        return mix64(mix64(self._seed & (2**64 - 1)) ^ next(self._requests))


def _fail(future: Future[ScoreResult], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
