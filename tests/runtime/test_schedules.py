"""The contract "same tokens": a request's tokens and log-probabilities are those that it gives alone, bit for bit,
under any schedule; and a schedule leaves nothing behind.

The engine's core is stepped by hand here, so that a schedule is data: who arrives and who gives up at which step.
PALMETTE_SCHEDULES=3000 tries so many instead of 300.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import tokenizers

from palmette.radix_cache.eviction import POLICIES as EVICTION
from palmette.runtime.core import EngineCore
from palmette.runtime.intake import Intake
from palmette.runtime.job import Job
from palmette.runtime.models.tiny import tiny_model
from palmette.runtime.policies import POLICIES
from palmette.runtime.protocol import (
    Constraint,
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
from palmette.runtime.tokenizer import Tokenizer, TokenizerParts
from palmette.runtime.tokenizer_library import byte_alphabet

pytestmark = pytest.mark.tiny

SCHEDULES = int(os.environ.get("PALMETTE_SCHEDULES", "300"))
# Programs that a schedule may have, and the most requests of one.
PROGRAMS, TURNS = 60, 3
CONSTRAINTS = [
    Constraint("regex", "[a-f]{2,6}-[0-9]+"),
    Constraint("choices", ("alpha", "alphabet", "beta")),
    Constraint("regex", "begin [xyz]{3} end"),
    Constraint("json_schema", '{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]}'),
    # Drawn again until the two letters are equal.
    Constraint(
        "json_schema", r'{"enum":["aa","ab","ba","bb"],"pattern":"^(.)\\1$"}', on_unsupported="validate", retries=9
    ),
]
# What a core may draft; each request's answer is compared with the one that it gives alone, without drafts.
SPECULATION = ["off", "auto", 1, 4, 16, 16]
STEMS = [b"The quick brown fox jumps over", b"The quick red fox", b"The thick"]
PAGE = b"One page of text that is longer than a tile of attention: " * 2
# The tokens of more than one byte, as pairs of those that they are merged from: "Ġ" is a blank.
MERGES = ["t h", "th e", "q u", "i c", "ic k", "o x", "Ġ j", "u m", "um p", "o v", "e r", "ov er", "Ġ r", "a g"]


@cache
def parts() -> Any:
    """A random model over bytes and some longer tokens, which prompts can be healed with."""
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in MERGES)]
    alphabet = byte_alphabet()
    known = alphabet | {left + right: 256 + at for at, (left, right) in enumerate(merges)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=known, merges=merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens([tokenizers.AddedToken("<eos>", special=True, normalized=False)])
    spelled: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    spelled += [bytes(alphabet[char] for char in left + right) for left, right in merges]
    end = len(spelled)
    tokenizer = Tokenizer(TokenizerParts(backend, [*spelled, None], {"<eos>": end}, frozenset({end})), width=end + 2)
    return tiny_model(3, vocab=end + 2)[0], tokenizer


@cache
def request(number: int) -> GenerateRequest | ScoreRequest:
    """The number-th of endlessly many random requests; many share beginnings."""
    draw = random.Random(number)
    stem = PAGE[: draw.randint(70, len(PAGE))] if draw.random() < 0.02 else draw.choice(STEMS)
    tokens = tuple(stem[: draw.randint(1, len(stem))]) + tuple(draw.randrange(256) for _ in range(draw.randint(0, 4)))
    namespace = draw.choice(["", "", "tenant"])
    if draw.random() < 0.15:
        choices = tuple(draw.sample(["yes", "yesterday", "no", "not at all", "ye", "x"], draw.randint(1, 4)))
        return ScoreRequest(
            tokens, choices, temperature=draw.choice([0.0, 1.0]), seed=draw.randrange(99), namespace=namespace
        )
    params: dict[str, Any] = {
        "max_tokens": draw.choice([0, 1, 6, 16, 24, 24]),
        "temperature": draw.choice([0.0, 0.7, 1.3]),
        "seed": draw.randrange(99),
        "n": draw.choice([1, 1, 2, 3]),
        "stop": draw.choice([(), (), (), ("e",), ("xy", "a")]),
        "logprobs": draw.choice([None, 0, 2]),
    }
    extras: list[dict[str, Any]] = [
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"frequency_penalty": 0.5, "presence_penalty": 0.3},
        {"repetition_penalty": 1.3},
        {"logit_bias": {101: 3.0, 32: -2.0}},
        {"ignore_eos": True},
        {"stop_token_ids": (97, 98)},
        {"stop_regex": ("[aeiou][^a-m]", "e+x?y")},
        {"min_tokens": min(2, params["max_tokens"])},
        {"echo": True},
        {"logprobs": 1, "logprob_token_ids": (97, 250)},
        {"prompt_logprobs": 2},
        {"prompt_logprobs": 0, "logprobs_start": len(tokens) // 2},
        {"best_of": params["n"] + 2},
        {"best_of": params["n"] + 1},
    ]
    for extra in draw.sample(extras, draw.choice([0, 0, 1, 2])):
        params |= extra
    params["token_healing"] = draw.random() < 0.8 and "prompt_logprobs" not in params
    params["pressure"] = number % 3 == 0
    constraint = draw.choice(CONSTRAINTS) if draw.random() < 0.2 else None
    stream = draw.random() < 0.3 and "best_of" not in params
    if constraint is not None and constraint.on_unsupported == "validate":
        stream = params["echo"] = False
    return GenerateRequest(tokens, SamplingParams(**params), constraint, namespace, stream=stream, healable=2)


@cache
def turn(program: int, number: int) -> GenerateRequest | ScoreRequest:
    """A program's number-th request: the later ones go on from what was said before them."""
    own = request(program + PROGRAMS * number)
    if number == 0:
        return own
    before = turn(program, number - 1)
    said = alone(program, number - 1).said
    if isinstance(own, GenerateRequest) and own.params.logprobs_start:
        own = replace(own, params=replace(own.params, logprobs_start=len(said) // 2))
    return replace(own, tokens=(*said, *own.tokens[-3:]), namespace=before.namespace)


# -- a core that is stepped by hand ------------------------------------------------------------------------------------


@dataclass
class HandLoop:
    """In the place of the engine's thread: jobs go straight to the core."""

    core: EngineCore
    closed: bool = False

    def check(self) -> None:
        pass

    def add(self, job: Job) -> None:
        self.core.add(job)

    def wake(self) -> None:
        pass


class Now:
    """An executor that does everything at once."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future


@dataclass
class Asked:
    """A request in flight, and what came of it."""

    request: GenerateRequest | ScoreRequest
    events: list[Event] = field(default_factory=list)
    group: Any = None
    score: Any = None
    jobs: Sequence[Job] = ()

    def cancel(self) -> None:
        if self.group is not None and not self.group.ended:
            self.group.cancel()
        for job in self.jobs:
            job.cancelled = True

    @property
    def ended(self) -> bool:
        return self.score.done() if self.score is not None else any(not isinstance(e, Delta) for e in self.events)

    def answer(self) -> Any:
        """All that may not depend on the schedule; an error by its words."""
        if self.score is not None:
            error = self.score.exception()
            return repr(error) if error else compared(self.score.result())
        *deltas, last = self.events
        assert all(isinstance(event, Delta) for event in deltas)
        if isinstance(last, Failed):
            return repr(last.error)
        assert isinstance(last, Finished)
        for out in last.outputs if self.request.stream else ():
            mine = [event for event in deltas if isinstance(event, Delta) and event.index == out.index]
            assert "".join(delta.text for delta in mine) == out.text
            assert [token for delta in mine for token in delta.tokens] == list(out.tokens)
        return [compared(out) for out in last.outputs]


def compared(result: Any) -> Any:
    skipped = {"usage", "prefill_seconds", "seconds"}
    return {name: getattr(result, name) for name in result.__dataclass_fields__ if name not in skipped}


class Rig:
    """The core. hopeful: as if all outputs had had at most so many tokens lately; where that is too few, too much is
    let in, and preemption has to make up for it."""

    def __init__(self, *, hopeful: int = 0, **core_settings: Any) -> None:
        model, tokenizer = parts()
        self.steps = 0
        self.core = EngineCore(model, token_count=tokenizer.n_tokens, **core_settings)
        self.intake = Intake(
            model,
            tokenizer,
            HandLoop(self.core),  # type: ignore[arg-type]
            kv_tokens=core_settings["kv_tokens"],
            seed=0,
        )
        self.intake._workers.shutdown()
        self.intake._workers = Now()  # type: ignore[assignment]
        for number in range(64 if hopeful else 0):
            self.core.scheduler.outlook.lengths.record(1 + number % hopeful)

    def ask(self, what: GenerateRequest | ScoreRequest) -> Asked:
        asked = Asked(what)
        if isinstance(what, ScoreRequest):
            asked.score, asked.jobs = self.intake.score(what)
        else:
            asked.group = self.intake.generate(what, asked.events.append)
        return asked

    def step(self) -> None:
        if self.core.busy:
            self.core.step()
        self.steps += 1
        assert self.steps < 20_000, "the core does not come to an end"
        # The check recounts everything, which takes as long as a step of this model.
        if self.steps % 4 == 0 or not self.core.busy:
            assert self.core.check_integrity() == []

    def finish(self) -> None:
        while self.core.busy:
            self.step()

    def leak(self) -> int:
        """Slots that are missing once everything is dropped."""
        self.core.cache.clear()
        return self.core.cache.pool.size - self.core.cache.pool.free

    def close(self) -> None:
        self.core.close()


class Alone(NamedTuple):
    """What a request gives alone. samples: with those that `best_of` leaves out; peak: KV slots of its greediest job;
    said: its text, from which the program's next request goes on."""

    answer: Any
    samples: list[Any]
    peak: int
    said: tuple[int, ...]


@cache
def alone(program: int, number: int) -> Alone:
    what = turn(program, number)
    rig = Rig(kv_tokens=2000, max_running=1, max_step_tokens=100_000, cache=False)
    asked = rig.ask(what)
    rig.finish()
    rig.close()
    answer = asked.answer()
    # Stop tokens that a constraint cannot do without leave nothing to draw: that is the caller's fault, and an answer.
    assert not isinstance(answer, str) or answer.startswith("ConstraintError"), answer
    samples, healed, tokens = [], 0, ()
    if asked.score is not None:
        result: ScoreResult = asked.score.result()
        healed, tokens = result.healed, result.tokens[result.index]
    elif not isinstance(answer, str):
        samples = [compared(asked.group.outputs[at]) for at in sorted(asked.group.outputs)]
        healed = len(what.tokens) if what.params.echo else answer[0]["healed"]
        tokens = answer[0]["tokens"]
    jobs = asked.jobs or asked.group.jobs
    # A limit that no text fits into is refused by what it says, and a smaller cache would say another.
    least = len(what.tokens) if jobs else len(what.tokens) + what.params.max_tokens
    peak = max([least, *(job.peak for job in jobs)])
    return Alone(answer, samples, peak, (*what.tokens[: len(what.tokens) - healed], *tokens))


# -- schedules ---------------------------------------------------------------------------------------------------------


class Program(NamedTuple):
    """Requests one after the other, the first in step `at`, each next one so many steps after an end. patience: after
    how many steps its last request is given up. family: whether the engine is told what belongs together."""

    number: int
    at: int
    turns: int = 1
    pause: int = 0
    patience: int | None = None
    family: bool = False
    priority: int = 0
    tenant: str = ""


class Schedule(NamedTuple):
    """spare: KV slots beyond what the greediest request needs. rounds: 2 for everything once more, cache warm."""

    programs: list[Program]
    spare: int
    settings: dict[str, Any]
    rounds: int = 1


@dataclass
class Course:
    """A program on its way: the request that is in flight, and when the next one or its end is due."""

    program: Program
    round: int
    due: int | None
    asked: list[Asked] = field(default_factory=list)
    until: int | None = None

    def goes_on(self, now: int, rig: Rig) -> bool:
        """Do what is due; False after the end."""
        program = self.program
        if self.due is not None and now >= self.due:
            what = turn(program.number, len(self.asked))
            family = f"{self.round}:{program.at}:{program.number}" if program.family else ""
            self.asked.append(rig.ask(replace(what, family=family, priority=program.priority, tenant=program.tenant)))
            self.due = None
            if program.patience is not None and len(self.asked) == program.turns:
                self.until = now + program.patience
        if self.until is not None and now >= self.until:
            self.asked[-1].cancel()
        if self.due is None and self.asked[-1].ended:
            if len(self.asked) == program.turns:
                rig.core.scheduler.leave(self.asked[-1].request.family)
                return False
            self.due = now + 1 + program.pause
        return True

    def check(self) -> None:
        for number, asked in enumerate(self.asked):
            gave_up = number == self.program.turns - 1 and self.program.patience is not None
            check(asked, alone(self.program.number, number), gave_up=gave_up)


def run(schedule: Schedule) -> tuple[EngineCore, list[Asked]]:
    """Run a schedule, check every answer; the core with its counters, and what was asked."""
    peak = max(alone(p.number, at).peak for p in schedule.programs for at in range(p.turns))
    # The greediest job just fits: everybody else has to make room for it.
    rig = Rig(kv_tokens=peak + schedule.spare, **schedule.settings)
    asked: list[Asked] = []
    for round in range(schedule.rounds):
        start = rig.steps
        courses = [Course(program, round, start + program.at) for program in schedule.programs]
        under_way = courses
        while under_way:
            under_way = [course for course in under_way if course.goes_on(rig.steps, rig)]
            rig.step()
        rig.finish()
        for course in courses:
            course.check()
            asked += course.asked
    assert rig.leak() == 0
    rig.close()
    return rig.core, asked


def check(asked: Asked, expected: Alone, *, gave_up: bool) -> None:
    assert asked.ended, asked.request
    got, whole = asked.answer(), expected.answer
    if not gave_up or got == whole:
        assert got == whole, asked.request
    elif isinstance(got, list) and isinstance(whole, str):
        assert {mine["finish_reason"] for mine in got} == {"cancelled"}
    elif isinstance(got, list):
        # Of samples that were cut short, others may be the best.
        of_any = asked.request.params.best_of is not None
        for mine, its in zip(got, whole, strict=True):
            assert any(begins(mine, sample) for sample in (expected.samples if of_any else [its])), asked.request
    else:
        assert "cancelled" in got


def begins(part: Any, whole: Any) -> bool:
    """Whether what was there of a sample by its end is a beginning of the whole."""
    if not whole["text"].startswith(part["text"].rstrip("\ufffd")):
        return False
    if part["finish_reason"] != "cancelled" or not part["logprobs"] or whole["logprobs"] is None:
        return True
    return bool(whole["logprobs"][: len(part["logprobs"])] == part["logprobs"])


def drawn(number: int) -> Schedule:
    """The number-th of endlessly many random schedules."""
    draw = random.Random(number)
    told = {
        "hopeful": draw.choice([0, 4, 4, 12, 12, 12]),
        "max_step_tokens": draw.choice([1, *[7, 64, 100_000] * 3]),
        "max_running": draw.choice([1, 3, *[64] * 8]),
        "policy": draw.choice(sorted(POLICIES)),
        "eviction": draw.choice(sorted(EVICTION)),
        "cache": draw.choice([True, True, True, True, True, True, False, "flat"]),
        "dedupe": draw.random() < 0.5,
        "hints": draw.random() < 0.5,
    }
    slow = told["max_step_tokens"] == 1
    turns = 1 if slow else draw.choice([1, 1, 2, TURNS])
    programs = [
        Program(
            draw.randrange(PROGRAMS),
            at=draw.choice([0, 0, 0, 1, 2, 5, 9]),
            turns=turns,
            pause=draw.choice([0, 0, 1, 4]),
            patience=draw.randint(0, 15) if draw.random() < 0.15 else None,
            family=draw.random() < 0.7,
            priority=draw.randint(0, 3),
            tenant=draw.choice("ab"),
        )
        for _ in range(2 if slow else draw.randint(2, 6 - turns))
    ]
    spare, rounds = draw.choice([*[0] * 10, 8, 1000]), draw.choice([1, 1, 1, 2])
    return Schedule(programs, spare, told | {"speculation": draw.choice(SPECULATION)}, rounds)


def simpler(schedule: Schedule) -> Iterator[Schedule]:
    """A little less of it, in every way that there is."""
    for at, program in enumerate(schedule.programs):
        rest = schedule.programs[:at], schedule.programs[at + 1 :]
        if len(schedule.programs) > 1:
            yield schedule._replace(programs=[*rest[0], *rest[1]])
        less = {"turns": program.turns - 1 or 1, "patience": None, "at": 0, "pause": 0, "family": False, "priority": 0}
        for name, value in less.items():
            yield schedule._replace(programs=[*rest[0], program._replace(**{name: value}), *rest[1]])
    for name in schedule.settings:
        yield schedule._replace(settings={key: told for key, told in schedule.settings.items() if key != name})
    yield schedule._replace(rounds=1)


def reduced(schedule: Schedule) -> Schedule:
    """Of a schedule that goes wrong, what makes a difference."""

    def goes_wrong(less: Schedule) -> bool:
        try:
            run(less)
        except Exception:
            return less != schedule
        return False

    while less := next(filter(goes_wrong, simpler(schedule)), None):
        schedule = less
    return schedule


# Of 300 schedules, in how many this must have happened: random ones would prove little if they never ran out of slots.
FLOORS = {
    "preempted": 60,
    "recomputed": 60,
    "evicted": 60,
    "dropped a hold": 20,
    "took from the cache": 150,
    "families, hints": 60,
    "families, no hints": 60,
    "constraint": 60,
    "forced": 60,
    "n > 1": 60,
    "best_of": 40,
    "healed": 60,
    "scored": 60,
    "cancelled": 40,
    "streamed": 60,
    "accepted": 60,
    "rejected": 60,
    "accepted, constraint": 10,
    "accepted, preempted": 10,
    **{f"speculation {setting}": 20 for setting in SPECULATION},
    **{f"policy {name}": 20 for name in POLICIES},
    **{f"eviction {name}": 20 for name in EVICTION},
    **{f"chunks {size}": 15 for size in (1, 7, 64, 100_000)},
}


def traits(schedule: Schedule, core: EngineCore, asked: Sequence[Asked]) -> set[str]:
    """What a schedule went through, by the engine's own counters and answers."""
    told, cached = schedule.settings, core.cache.stats
    outputs = [
        (each.request, out)
        for each in asked
        if each.events and isinstance(last := each.events[-1], Finished)
        for out in last.outputs
    ]
    has = {
        "preempted": core.scheduler.counters.preemptions,
        "recomputed": core.scheduler.counters.recomputed_tokens,
        "evicted": cached.evicted_tokens,
        "dropped a hold": core.scheduler.counters.dropped_holds,
        "took from the cache": core.counters.cached_tokens,
        "families, hints" if told["hints"] else "families, no hints": any(p.family for p in schedule.programs),
        "constraint": any(request.constraint is not None for request, _ in outputs),
        "forced": core.counters.forced_tokens,
        "n > 1": any(request.params.n > 1 for request, _ in outputs),
        "best_of": any(request.params.best_of is not None for request, _ in outputs),
        "healed": any(out.healed for _, out in outputs),
        "scored": any(each.score is not None for each in asked),
        "cancelled": core.counters.cancelled,
        "streamed": any(request.stream for request, _ in outputs),
        f"policy {told['policy']}": True,
        f"eviction {told['eviction']}": True,
        f"chunks {told['max_step_tokens']}": True,
        f"speculation {told['speculation']}": True,
        "accepted": core.counters.accepted_tokens,
        "rejected": core.counters.drafted_tokens > core.counters.accepted_tokens,
        "accepted, constraint": any(out.usage.accepted_tokens for ask, out in outputs if ask.constraint is not None),
        "accepted, preempted": any(out.usage.accepted_tokens and out.usage.preemptions for _, out in outputs),
    }
    return {name for name, value in has.items() if value}


@pytest.mark.timeout(600 * max(1, SCHEDULES // 300))
def test_tokens_and_logprobs_do_not_depend_on_the_schedule() -> None:
    seen: Counter[str] = Counter()
    for number in range(SCHEDULES):
        schedule = drawn(number)
        try:
            core, asked = run(schedule)
        except Exception as error:
            raise AssertionError(f"schedule {number}, which may be reduced to {reduced(schedule)}") from error
        seen.update(traits(schedule, core, asked))
    assert {name: seen[name] for name, least in FLOORS.items() if seen[name] < least * SCHEDULES / 300} == {}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_preemption_and_eviction_change_nothing(policy: str) -> None:
    """One long schedule under each policy."""
    told = {"hopeful": 1, "max_step_tokens": 64, "max_running": 16, "policy": policy}
    programs = [
        Program(number, at=number % 10, turns=1 + number % 2, family=number % 3 > 0, priority=number % 4)
        for number in range(40)
    ]
    core, _ = run(Schedule(programs, spare=0, settings=told, rounds=2))
    assert core.scheduler.counters.preemptions > 5
    assert core.scheduler.counters.recomputed_tokens > 0
    assert core.cache.stats.evicted_tokens > 100
    assert core.cache.stats.hit_tokens > 100


def test_a_priority_takes_the_place_of_a_lower_one() -> None:
    rig = Rig(kv_tokens=64, max_running=1, policy="priority")
    low = rig.ask(GenerateRequest((1, 2, 3), SamplingParams(max_tokens=20, ignore_eos=True, seed=1), priority=0))
    for _ in range(5):
        rig.step()
    high = rig.ask(GenerateRequest((7, 8), SamplingParams(max_tokens=4, ignore_eos=True, seed=1), priority=1))
    while not high.ended:
        rig.step()
    assert not low.ended
    rig.finish()
    last = low.events[-1]
    assert isinstance(last, Finished)
    output: Output = last.outputs[0]
    assert output.usage.preemptions == 1
    assert len(output.tokens) == 20
    assert rig.leak() == 0
    rig.close()


def test_a_request_that_is_given_up_while_its_prompt_is_healed_draws_nothing() -> None:
    rig = Rig(kv_tokens=200)
    params = SamplingParams(max_tokens=6, temperature=0.0, token_healing=True)
    asked = rig.ask(GenerateRequest(tuple(b"The th"), params, healable=2))
    asked.cancel()
    rig.finish()
    assert asked.answer()[0]["tokens"] == ()
    assert rig.core.counters.sampled_tokens == 0
    rig.close()
