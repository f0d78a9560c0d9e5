"""From a request to jobs: checks that need model and tokenizer, the constraint's compile, the option tree.

What is wrong with a request becomes its terminal event here, before it reaches the scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count

from palmette.errors import ArgumentError, ConstraintError, ContextLengthError, PalmetteError
from palmette.runtime import options
from palmette.runtime.constraints import closing
from palmette.runtime.constraints.beginnings import legal_beginnings
from palmette.runtime.constraints.compile import ConstraintCompiler
from palmette.runtime.constraints.matcher import CompiledConstraint
from palmette.runtime.constraints.validate_after import Check, Problem, compiled_or_looser
from palmette.runtime.group import Group
from palmette.runtime.healing import CoverJob, CoverTree, find_tail
from palmette.runtime.job import Job
from palmette.runtime.loop import EngineLoop, closed_error
from palmette.runtime.models.model import Model
from palmette.runtime.pins import Pins
from palmette.runtime.protocol import Event, GenerateRequest, SamplingParams, ScoreRequest, ScoreResult
from palmette.runtime.request import GenerateJob, Healed, Prepared, TextTools, drawn_by, ends_of, spelled_ends
from palmette.runtime.sampler import mix64, sample_seed
from palmette.runtime.score import Boundary, OptionTree, ScoreJob, check_score, find_boundary, result_of
from palmette.runtime.stopping import StopCompiler, validate_stop
from palmette.runtime.tokenizer import Tokenizer

_log = logging.getLogger("palmette")

# Log-probabilities of other tokens that one request may tell: some hundred bytes each.
_MOST_LOGPROBS = 10_000_000
# Beyond all numbers of samples: whose seeds a request has that is drawn again.
_ANOTHER = 1 << 32


class Intake:
    """Takes requests from any thread, checks them, and hands jobs to the engine's loop."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        loop: EngineLoop,
        *,
        kv_tokens: int,
        seed: int = 0,
        pins: Pins | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._loop = loop
        self._kv_tokens = kv_tokens
        self._pins = pins if pins is not None else Pins(kv_tokens)
        self._seed = seed
        self._requests = count()
        self._tools = TextTools(tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.vocabulary.spell, tokenizer.control)
        self._compiler = ConstraintCompiler(tokenizer.vocabulary)
        self._stops = StopCompiler()
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="palmette-compile")

    def generate(self, request: GenerateRequest, emit: Callable[[Event], None]) -> Group:
        """Send a request on its way. `emit` is called from other threads with its events."""
        group = Group(request, emit)
        try:
            self._loop.check()
            options.check_account(request)
            group.request = request = replace(request, params=options.checked(request.params))
            options.check_stream(request.params, request.stream)
            options.check_validated(request)
            prepared = self._prepare(request, group)
            for pattern in request.params.stop_regex:
                validate_stop(pattern)
            if request.constraint is not None or request.params.stop_regex:
                self._workers.submit(self._compile, prepared)
            else:
                self._set_out(prepared)
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
        # In this order: whoever comes meanwhile is told that the engine is closed.
        self._loop.close()
        self._workers.shutdown(wait=False)

    # -- generate ----------------------------------------------------------------------------------------------------

    def _prepare(self, request: GenerateRequest, group: Group) -> Prepared:
        params = request.params
        for name in ("stop_token_ids", "logit_bias", "logprob_token_ids"):
            self._check_tokens(tuple(getattr(params, name)), name)
        prompt = self._checked_prompt(request.tokens)
        if params.logprobs_start > len(prompt):
            raise ArgumentError(
                f"generate(): logprobs_start={params.logprobs_start} is behind the prompt's end",
                hint=f"the prompt has {len(prompt)} tokens",
            )
        new_tokens = self._room(prompt, request)
        self._check_logprobs(params, len(prompt), new_tokens)
        seed = params.seed if params.seed is not None else self._fresh_seed()
        return Prepared(group, prompt, new_tokens, seed)

    def _compile(self, prepared: Prepared) -> None:
        """On a worker thread: the constraint and the stop patterns, then on to the engine."""
        request = prepared.group.request
        try:
            patterns = [self._stops.compile(pattern) for pattern in request.params.stop_regex]
            compiled = check = None
            if request.constraint is not None:
                compiled, check = compiled_or_looser(request.constraint, self._compiler.compile)
            # Anew, as somebody may have pinned slots meanwhile.
            room = self._room(prepared.prompt, request)
            if compiled is not None and room:
                self._check_limit(request, compiled, room)
            prepared = replace(prepared, patterns=patterns, compiled=compiled, new_tokens=room)
            if check is not None:
                self._reviewed(prepared, check, 1)
            self._set_out(prepared)
        except Exception as error:
            prepared.group.fail(error)

    def _check_limit(self, request: GenerateRequest, compiled: CompiledConstraint, room: int) -> None:
        """A limit below the shortest text is told at once."""
        try:
            closing.start(compiled, room, banned=self._banned(request))
        except ConstraintError as error:
            if not request.cut:
                raise
            named = "" if request.name is None else f"{request.name!r}: "
            _log.warning("%s%s, so it will be cut; %s", named, error.message, error.hint)

    def _reviewed(self, prepared: Prepared, check: Check, attempt: int) -> None:
        """Have the outputs looked at when all are there, away from the engine's thread."""
        group = prepared.group

        def review() -> None:
            try:
                self._workers.submit(self._review, prepared, check, attempt)
            except RuntimeError:
                group.fail(closed_error())

        group.review = review

    def _review(self, prepared: Prepared, check: Check, attempt: int) -> None:
        """On a worker thread: texts that are not valid under the whole schema are drawn again."""
        group = prepared.group
        try:
            wrong: dict[int, Problem] = {}
            for index, output in list(group.outputs.items()):
                if output.validated or output.finish_reason not in ("constraint", "stop"):
                    continue  # what was cut is no value
                problem = check.problem(output.text)
                if problem is None:
                    group.outputs[index] = replace(output, validated=True, attempts=attempt)
                else:
                    wrong[index] = problem
            if not wrong:
                group.answer()
                return
            if attempt > check.retries or group.request.params.temperature == 0:
                # Without temperature another seed would give the same.
                raise check.failure(wrong[min(wrong)], attempt)
            for index in wrong:
                spent = group.outputs.pop(index).usage.completion_tokens
                group.spent[index] = group.spent.get(index, 0) + spent
            seed = sample_seed(prepared.seed, _ANOTHER + attempt)
            self._reviewed(prepared, check, attempt + 1)
            self._set_out(replace(prepared, seed=seed, again=tuple(sorted(wrong))))
        except Exception as error:
            group.fail(error)

    def _banned(self, request: GenerateRequest) -> frozenset[int]:
        """The tokens that no constraint's text may be completed with."""
        return spelled_ends(ends_of(request, self._tools), self._tools)

    def _set_out(self, prepared: Prepared) -> None:
        """Send the samples to the engine; first, where the prompt is to be healed, what computes how."""
        tree = self._covers(prepared)
        if tree is None:
            self._start(prepared)
        else:
            self._loop.add(self._cover_job(prepared, tree))

    def _start(self, prepared: Prepared, healed: Sequence[Healed] = ()) -> None:
        """Send the samples to the engine."""
        request = prepared.group.request
        jobs = []
        for index in prepared.again or range(prepared.group.samples):
            how, room = None, prepared.new_tokens
            if healed:
                how = healed[index]
                prompt = (*how.tail.kept, *how.cover.inside)
                room = self._room(prompt, request)
            jobs.append(GenerateJob(prepared, index, self._tools, room, how))
        for job in jobs:
            self._loop.add(job)

    def _covers(self, prepared: Prepared) -> CoverTree | None:
        """The ways to spell the prompt's end anew; None where nothing is to be healed."""
        request, compiled, vocabulary = prepared.group.request, prepared.compiled, self._tokenizer.vocabulary
        if not request.params.token_healing or prepared.new_tokens == 0:
            return None
        ends = ends_of(request, self._tools)
        tail = find_tail(
            prepared.prompt,
            vocabulary,
            healable=request.healable,
            fixed=ends,
            max_context=self._model.max_context,
        )
        if tail is None:
            return None
        legal = None
        if compiled is not None:
            begin = closing.start(compiled, prepared.new_tokens, banned=self._banned(request), cut=request.cut)
            legal = partial(legal_beginnings, begin, vocabulary)
        tree = CoverTree(tail, vocabulary, drawn_by(request.params), banned=ends, legal=legal)
        return tree if tree.crosses else None

    def _cover_job(self, prepared: Prepared, tree: CoverTree) -> CoverJob:
        """Computes the covers, then has each sample go on from one of them."""
        group, tail = prepared.group, tree.tail
        request = group.request

        def answer(found: ScoreJob | BaseException) -> None:
            try:
                if not isinstance(found, BaseException):
                    covers = tree.choose([sample_seed(prepared.seed, index) for index in range(group.samples)])
                    found.keep(covers[0].nodes)
                    self._start(prepared, [Healed(tail, cover, found) for cover in covers])
                elif group.cancelled and not group.ended:
                    # The samples answer, each with what it has.
                    self._start(prepared)
                else:
                    group.fail(found)
            except Exception as error:
                group.fail(error)

        job = CoverJob(
            tree,
            answer,
            namespace=request.namespace,
            priority=request.priority,
            tenant=request.tenant,
            family=request.family,
        )
        slots = self._slots(tail.kept, request.namespace)
        if job.peak > slots:
            raise ContextLengthError(
                f"healing the prompt may need {job.peak} KV slots, the engine has "
                f"{_free_of_pins(self._kv_tokens, slots)}",
                hint="give the engine more kv_tokens, or leave token_healing out",
            )
        group.add(job)
        return job

    # -- score -------------------------------------------------------------------------------------------------------

    def _start_score(self, request: ScoreRequest, future: Future[ScoreResult], jobs: list[ScoreJob]) -> None:
        self._loop.check()
        check_score(request)
        options.check_account(request)
        boundary = find_boundary(
            self._checked_prompt(request.tokens),
            request.choices,
            healable=request.healable,
            bytes_of=self._tokenizer.token_bytes,
            encode=self._tokenizer.encode,
        )
        tree = OptionTree(boundary, self._tokenizer.vocabulary)
        plain: OptionTree | None = None
        if request.method == "unconditional_likelihood_normalized":
            start = Boundary((self._start_token(),), boundary.options, boundary.rest, boundary.healed)
            plain = OptionTree(start, self._tokenizer.vocabulary)
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

        main = self._score_job(tree, request, answer)
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

        first = self._score_job(plain, request, go_on)
        jobs.append(first)
        self._loop.add(first)

    def _score_job(
        self, tree: OptionTree, request: ScoreRequest, answer: Callable[[ScoreJob | BaseException], None]
    ) -> ScoreJob:
        boundary = tree.boundary
        job = ScoreJob(
            boundary.prompt,
            tree.inner_tokens(),
            tree.inner_parents(),
            tree.read,
            answer,
            namespace=request.namespace,
            priority=request.priority,
            tenant=request.tenant,
            family=request.family,
        )
        longest = len(boundary.prompt) + max(map(len, boundary.options))
        if longest > self._model.max_context:
            raise ContextLengthError(
                f"the prompt and its longest option have {longest} tokens, the model's context holds "
                f"{self._model.max_context}",
                hint="shorten the prompt",
            )
        slots = self._slots(boundary.prompt, request.namespace)
        if job.peak > slots:
            raise ContextLengthError(
                f"the prompt and its options need {job.peak} KV slots, the engine has "
                f"{_free_of_pins(self._kv_tokens, slots)}",
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
                raise ArgumentError(
                    f"token id {token} in {where} is not in the vocabulary of {known} tokens",
                    hint=f"ids go from 0 to {known - 1}",
                )

    def _slots(self, prompt: Sequence[int], namespace: str) -> int:
        """How many KV slots a request with this prompt may hold: all that are not pinned by others."""
        return self._kv_tokens - self._pins.beside(prompt, namespace)

    def _check_logprobs(self, params: SamplingParams, prompt: int, new_tokens: int) -> None:
        """Refuses numbers of log-probabilities that nobody can mean, or that would fill the memory."""
        samples = params.best_of or params.n
        asked = (
            ("logprobs", params.logprobs, new_tokens * samples),
            ("prompt_logprobs", params.prompt_logprobs, prompt - params.logprobs_start),
        )
        for name, most, places in asked:
            if most is None:
                continue
            if most > self._tokenizer.n_tokens:
                raise ArgumentError(
                    f"generate(): {name}={most} asks for more tokens than there are",
                    hint=f"the vocabulary has {self._tokenizer.n_tokens}",
                )
            told = (most + len(params.logprob_token_ids)) * places
            if told > _MOST_LOGPROBS:
                raise ArgumentError(
                    f"generate(): {name}={most} may tell {told:,} log-probabilities, for {places:,} tokens",
                    hint=f"at most {_MOST_LOGPROBS:,} are told in one request: lower {name}, or ask for fewer tokens",
                )

    def _room(self, tokens: Sequence[int], request: GenerateRequest) -> int:
        """How many tokens may be generated behind a prompt: what was asked for, or what fits."""
        prompt, slots = len(tokens), self._slots(tokens, request.namespace)
        least, most = request.params.min_tokens, request.params.max_tokens
        need = 0 if most == 0 else 1
        if prompt + need > self._model.max_context:
            raise ContextLengthError(
                f"the prompt has {prompt} tokens, the model's context holds {self._model.max_context}",
                hint="shorten the prompt",
            )
        if prompt > slots:
            raise ContextLengthError(
                f"the prompt has {prompt} tokens, the KV cache holds {_free_of_pins(self._kv_tokens, slots)}",
                hint="give the engine more kv_tokens, or shorten the prompt",
            )
        # The last token that is drawn needs no slot.
        room = min(self._model.max_context - prompt, slots - prompt + 1)
        if least > room:
            raise ContextLengthError(
                f"min_tokens={least} cannot be reached: behind the prompt's {prompt} tokens there is room for {room}",
                hint=f"the context holds {self._model.max_context} tokens, the KV cache "
                f"{_free_of_pins(self._kv_tokens, slots)}: lower min_tokens, or shorten the prompt",
            )
        return room if most is None else min(room, most)

    def _fresh_seed(self) -> int:
        """A seed for a request without one: from the engine's seed and the request's number."""
        return mix64(mix64(self._seed & (2**64 - 1)) ^ next(self._requests))


def _free_of_pins(total: int, slots: int) -> str:
    return f"{total}" if slots == total else f"{slots} besides what is pinned"


def _fail(future: Future[ScoreResult], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
