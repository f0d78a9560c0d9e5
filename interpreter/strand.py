"""What runs one state: it takes operations off a queue, one after the other, on the loop thread.

A strand belongs to the loop thread. Others may only append to `ops`, post `pump`, and read what an operation made once
that operation is finished. It ends every operation, come what may: that is what keeps readers from hanging.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from types import TracebackType
from typing import Any

from palmette.errors import Cancelled
from palmette.interpreter import operations as op
from palmette.interpreter.asking import ask
from palmette.interpreter.bodies import Gate
from palmette.interpreter.events import Event, TextEvent, VariableEvent
from palmette.interpreter.joining import arrived, merge
from palmette.interpreter.loop import LoopThread
from palmette.interpreter.memory import Memory
from palmette.interpreter.poison import add_note, first_traceback
from palmette.interpreter.results import Result, SelectResult, Step, gen_result, select_result
from palmette.interpreter.transcript import Prompt
from palmette.lang.function import Account
from palmette.runtime.protocol import (
    Backend,
    Codec,
    Failed,
    GenerateRequest,
    ScoreRequest,
)

_families = count()


@dataclass(frozen=True, slots=True)
class Shared:
    """What all strands of one run have in common. `sink` takes the events of a streamed run. account: the request
    fields that say on whose account it goes."""

    thread: LoopThread
    backend: Backend
    codec: Codec
    program: str
    sink: Callable[[Event], None] | None = None
    sink_branches: bool = False
    account: Account = field(default_factory=Account)


class Strand:
    def __init__(self, shared: Shared, parent: Strand | None = None, path: tuple[int, ...] = ()) -> None:
        self.shared = shared
        self.parent = parent
        self.path = path
        self.ops: deque[op.Operation] = deque()
        self.memory = Memory()
        self.written: dict[str, None] = {}
        self.made: list[Result] = []
        self.trace: list[Step] = []
        self.error: BaseException | None = None
        self.traceback: TracebackType | None = None
        # Whether somebody has been told of the error, and whether the program itself gave the state up.
        self.seen = False
        self.dropped = False
        self._cancelled = False
        self.children: set[Strand] = set()
        self._started = parent is None
        self._task: asyncio.Task[None] | None = None
        self._current: op.Operation | None = None
        self._scopes: list[int] = []
        self._emitted = 0
        self._family = ""
        self._left = False
        emits = shared.sink is not None and (shared.sink_branches or not path)
        self._sink = shared.sink if emits else None

    # -- running

    def pump(self) -> None:
        """Goes on with the queue: at once as far as nothing has to be awaited, then in a task."""
        if self._task is not None or not self._started:
            return
        while self.ops:
            if self.error is not None:
                self._flush()
            elif isinstance(self.ops[0], op.Generate | op.Choose | op.Join):
                self._task = self.shared.thread.loop.create_task(self._work())
                # Also where the task is cancelled before its first step, which then never runs.
                self._task.add_done_callback(self._worked)
                return
            else:
                self._now(self.ops.popleft())

    async def _work(self) -> None:
        while self.ops and self.error is None:
            current = self.ops.popleft()
            if not isinstance(current, op.Generate | op.Choose | op.Join):
                self._now(current)
                continue
            self._current = current
            try:
                if isinstance(current, op.Generate):
                    await self._generate(current)
                elif isinstance(current, op.Choose):
                    await self._choose(current)
                else:
                    await self._join(current)
            except asyncio.CancelledError:
                self.fail(Cancelled("the request was cancelled", hint="the backend or its event loop was closed"))
            except BaseException as error:
                self.fail(error, current.where)
            finally:
                self._current = None
                current.finish()

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.pump()
        self._leave()

    def _now(self, current: op.Operation) -> None:
        try:
            self._apply(current)
        except BaseException as error:
            # Put back, so that branches that wait for this very fork are failed with the rest.
            self.ops.appendleft(current)
            self.fail(error, current.where)
        finally:
            current.finish()

    def _apply(self, current: op.Operation) -> None:
        transcript = self.memory.transcript
        match current:
            case op.Write():
                transcript.literal(current.text, current.trusted)
            case op.BeginRole():
                transcript.begin(current.role, self.shared.codec)
            case op.EndRole():
                transcript.end(self.shared.codec)
            case op.OpenScope():
                self._scopes.append(transcript.length)
            case op.CloseScope():
                self._set(current.name, transcript.text_since(self._scopes.pop()))
            case op.Assign():
                self._set(current.name, current.value)
            case op.Fork():
                for child in current.children:
                    if child.error is None:
                        self.children.add(child)
                    child._begin(self.memory.copy(), list(self._scopes))
                self._step(current, "fork")
        self._emit_literals()

    def _begin(self, memory: Memory, scopes: list[int]) -> None:
        if self.error is None:
            self.memory = memory
            self._scopes = scopes
            self._emitted = len(memory.transcript.parts)
        self._started = True
        self.pump()

    # -- the awaited operations

    async def _generate(self, current: op.Generate) -> None:
        shared, transcript = self.shared, self.memory.transcript
        prompt = self._prompt(current)
        params = current.params
        end = transcript.end_token(shared.codec) if "stop_token_ids" in shared.backend.capabilities.params else None
        if end is not None and end not in params.stop_token_ids and not params.ignore_eos:
            params = replace(params, stop_token_ids=(*params.stop_token_ids, end))
        # Which of several is the best, and whether one has to be drawn again, is known at the end.
        checked = current.constraint is not None and current.constraint.on_unsupported == "validate"
        late = checked or params.best_of is not None
        stream = self._sink is not None and shared.backend.capabilities.stream and not late
        request = GenerateRequest(
            prompt.tokens,
            params,
            current.constraint,
            name=current.name,
            stream=stream,
            healable=transcript.literal_tail,
            namespace=shared.account.namespace,
            priority=shared.account.priority,
            tenant=shared.account.tenant,
            family=self._name(),
            cut=True,
        )
        began = time.perf_counter()
        sink = self._sink
        emit = None if sink is None else lambda text: sink(TextEvent(text, current.name, True, self.path))
        outputs = await ask(shared.backend, request, emit)
        if isinstance(outputs, Failed):
            self.fail(outputs.error, current.where)
            return
        seconds = time.perf_counter() - began
        results = [
            gen_result(current.name, out, current.constraint, current.parse, current.type_name) for out in outputs
        ]
        first = results[0]
        transcript.drop_tokens(outputs[0].healed)
        transcript.generated(first.text, first.tokens)
        self._emitted = len(transcript.parts)
        self.trace.append(
            Step(
                "gen",
                current.name,
                first.text,
                sum(result.completion_tokens + result.discarded_tokens for result in results),
                first.prompt_tokens,
                first.cached_tokens,
                sum(result.forced_tokens for result in results),
                seconds,
                str(current.where),
            )
        )
        several = params.n > 1
        result: Result = list(results) if several else first
        self.made.append(result)
        if current.name is not None:
            self._set(current.name, [item.text for item in results] if several else first.text, result)

    async def _choose(self, current: op.Choose) -> None:
        transcript, account = self.memory.transcript, self.shared.account
        prompt = self._prompt(current)
        began = time.perf_counter()
        score = await self.shared.backend.score_async(
            ScoreRequest(
                prompt.tokens,
                current.choices,
                current.method,
                current.temperature,
                current.seed,
                name=current.name,
                healable=transcript.literal_tail,
                namespace=account.namespace,
                priority=account.priority,
                tenant=account.tenant,
                family=self._name(),
            )
        )
        seconds = time.perf_counter() - began
        result: SelectResult = select_result(current.name, current.choices, score, self.shared.codec.decode, seconds)
        transcript.drop_tokens(score.healed)
        transcript.generated(result.text, result.tokens)
        if self._sink is not None:
            self._sink(TextEvent(result.text, current.name, True, self.path))
        self._emitted = len(transcript.parts)
        self._step(
            current, "select", result.text, len(result.tokens), result.prompt_tokens, result.cached_tokens, seconds
        )
        self.made.append(result)
        if current.name is not None:
            self._set(current.name, result.text, result)

    async def _join(self, current: op.Join) -> None:
        began = time.perf_counter()
        strands = [arrival.strand for arrival in current.arrivals]
        for strand in strands:
            strand.pump()
        await arrived(current.arrivals, self.shared.thread.loop)
        failed = next((strand.error for strand in strands if strand.error is not None and not strand.dropped), None)
        try:
            if failed is not None:
                self.fail(failed)
                return
            for name, joined in merge(strands, self.memory.variables.keys() - self.memory.gathered).items():
                self._set(name, joined.values, joined.results)
                self.memory.gathered.add(name)
            self._step(current, "join", seconds=time.perf_counter() - began)
        finally:
            # Also where all went well: branches of a branch that it did not join end with it.
            for strand in strands:
                strand.seen = True
                strand.cancel()

    # -- ending

    def fail(self, error: BaseException, where: op.Where | None = None) -> None:
        """Poisons the state: what is queued, now or later, is dropped, and its readers get `error`."""
        self.leave()
        if self.error is None:
            if where is not None:
                add_note(error, f"in program {self.shared.program!r}, {where}: {where.source()}")
            self.traceback = first_traceback(error)
            self.error = error
        self._started = True
        self._flush()

    def cancel(self, *, dropped: bool = False, error: BaseException | None = None) -> list[asyncio.Task[None]]:
        """Cancels the subtree, because of `error` if given; what is complete keeps its values. Returns the tasks that
        are still to end."""
        self._cancelled = True
        self.leave()
        tasks = [task for child in list(self.children) for task in child.cancel(dropped=dropped)]
        current = self._current
        if current is not None or self.ops or not self._started:
            if self.error is None:
                self.seen = self.dropped = dropped
            hint = "join a branch, or read it, before its program ends"
            self.fail(error if error is not None else Cancelled("the state was cancelled", hint=hint))
            if current is not None:
                # Its readers need not wait until the backend has cleaned up.
                current.finish()
            if self._task is not None:
                self._task.cancel()
        if self._task is not None:
            tasks.append(self._task)
        self._leave()
        return tasks

    def _leave(self) -> None:
        """Once a cancelled subtree has ended, its parent forgets it."""
        if self._cancelled and self._task is None and not self.children and self.parent is not None:
            self.parent.children.discard(self)
            self.parent._leave()

    def end(self, gate: Gate) -> None:
        """Cancels the branches that nobody joined, and opens `gate` once they have ended."""
        self.leave()
        gate.open_after([task for child in list(self.children) for task in child.cancel()], self.shared.thread.loop)

    def abort(self, gate: Gate, error: BaseException | None) -> None:
        """Cancels the whole tree, because of `error` if given, and opens `gate` once it has ended."""
        tasks = self.cancel(dropped=True, error=error)
        if error is not None:
            self.seen = True
            self.fail(error)
        gate.open_after(tasks, self.shared.thread.loop)

    def _flush(self) -> None:
        while self.ops:
            dropped = self.ops.popleft()
            if isinstance(dropped, op.Fork):
                assert self.error is not None
                for child in dropped.children:
                    child.seen = True
                    child.fail(self.error)
            elif isinstance(dropped, op.Join):
                # Nobody will take what these branches make.
                for arrival in dropped.arrivals:
                    arrival.strand.seen = True
                    arrival.strand.cancel()
            dropped.finish()

    # -- small things

    def _name(self) -> str:
        """What the backend knows this strand by, from its first request until it `leave`s; "" after that."""
        if not self._family and not self._left:
            self._family = f"{self.shared.program}/{next(_families)}"
        return self._family

    def leave(self) -> None:
        """There will be no more requests, as far as is known: the backend need not keep anything for them. (A state can
        be gone on with after its run; it does well without.)"""
        self._left = True
        family, self._family = self._family, ""
        if family and self.shared.backend.capabilities.holds:
            self.shared.backend.leave(family)

    def _prompt(self, current: op.Operation) -> Prompt:
        prompt = self.memory.transcript.prompt(self.shared.codec)
        self._emit_literals()
        if prompt.literal:
            self.trace.append(Step("literal", None, prompt.literal, prompt.literal_tokens, where=str(current.where)))
        return prompt

    def _step(
        self,
        current: op.Operation,
        kind: Any,
        text: str = "",
        tokens: int = 0,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        seconds: float = 0.0,
    ) -> None:
        name = getattr(current, "name", None)
        where = str(current.where)
        self.trace.append(Step(kind, name, text, tokens, prompt_tokens, cached_tokens, 0, seconds, where))

    def _set(self, name: str, value: Any, result: Result = None) -> None:
        self.memory.set(name, value, result)
        self.written[name] = None
        if self._sink is not None:
            self._emit_literals()
            self._sink(VariableEvent(name, value, self.path))

    def _emit_literals(self) -> None:
        if self._sink is not None:
            parts = self.memory.transcript.parts
            for text in parts[self._emitted :]:
                if text:
                    self._sink(TextEvent(text, None, False, self.path))
            self._emitted = len(parts)
