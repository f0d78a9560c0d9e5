"""Token healing against brute force: all ways to spell a prompt's end, by direct calls of the model."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import palmette as pt
from palmette.errors import ArgumentError, BackendError, ContextLengthError
from palmette.interpreter.backends.mock import MockBackend
from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.runtime import healing
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.core import EngineCore
from palmette.runtime.engine import Engine
from palmette.runtime.healing import CoverJob, CoverTree, Tail, find_tail
from palmette.runtime.models.model import Model
from palmette.runtime.models.tiny import random_weights, tiny_architecture
from palmette.runtime.protocol import Delta, Failed, Finished, GenerateRequest, SamplingParams
from palmette.runtime.sampler import sample_seed, uniform

pytestmark = pytest.mark.tiny

Logits = Callable[[Sequence[int]], torch.Tensor]
PIECES = [b"a", b"b", b"c", b"ab", b"bc", b"abc", b"ca", b"abca", b"cab", b"caa", b"d"]
END = len(PIECES)


class TableModel:
    """A model whose logits are drawn anew for each text, from the tokens that the KV slots say it has."""

    max_context = 64
    batch_invariant = True
    kv_bytes_per_token = 8

    def __init__(self, width: int, scale: float = 2.0) -> None:
        self.vocab_width = width
        self.sampler = None
        self.scale = scale
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0
        self.fails = False

    def new_kv(self, slots: int) -> torch.Tensor:
        return torch.zeros(slots, dtype=torch.long)

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        digest = hashlib.sha256(repr([int(token) for token in tokens]).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        return torch.randn(self.vocab_width, generator=generator) * self.scale

    def forward(self, batch: RaggedBatch, kv: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.gate.wait(20)
        if self.fails:
            raise RuntimeError("the model broke")
        batch = batch.on("cpu")
        kv[batch.slots] = batch.tokens
        lines = []
        for row in batch.out_rows.tolist():
            run = int(torch.searchsorted(batch.seg_start, row, right=True)) - 1
            context = kv[batch.kv_slots[batch.kv_start[run] : batch.kv_start[run + 1]]]
            lines.append(self.logits(context[: len(context) - int(batch.seg_start[run + 1]) + row + 1].tolist()))
        return torch.stack(lines) if lines else torch.empty(0, self.vocab_width)


@pytest.fixture
def table_engine(list_tokenizer: Any) -> Iterator[Callable[..., Any]]:
    """A maker of engines around a TableModel; keywords are settings of Engine."""
    made: list[Engine] = []

    def make(pieces: list[bytes] = PIECES, **settings: Any) -> Any:
        model: Any = TableModel(len(pieces) + 1)
        made.append(Engine.from_model(model, list_tokenizer(pieces), **{"kv_tokens": 400, **settings}))
        return made[-1]

    yield make
    for engine in made:
        faults = engine.check_integrity() if engine.is_open else []
        engine.close()
        assert faults == []


def brute_force(
    logits: Logits, pieces: Sequence[bytes | None], kept: Sequence[int], rest: bytes, heat: float = 1.0
) -> dict[tuple[int, ...], float]:
    """All covers of `rest` behind the kept tokens, with their probabilities."""
    found: dict[tuple[int, ...], float] = {}

    def walk(tokens: tuple[int, ...], probability: float, missing: bytes) -> None:
        table = torch.softmax(logits([*kept, *tokens]).double() / heat, dim=-1).tolist()
        for token, piece in enumerate(pieces):
            if piece and piece.startswith(missing):
                found[*tokens, token] = probability * table[token]
            elif piece and missing.startswith(piece):
                walk((*tokens, token), probability * table[token], missing[len(piece) :])

    walk((), 1.0, rest)
    return found


def grown(tree: CoverTree, logits: Logits) -> CoverTree:
    """The tree with all its nodes read, as a CoverJob would do it."""
    texts, fresh = [tree.tail.kept], [-1]
    while fresh:
        for node in fresh:
            tree.read(node, logits(texts[node + 1]))
        children = tree.grow()
        fresh = list(range(len(texts) - 1, len(texts) - 1 + len(children)))
        texts += [(*texts[parent + 1], token) for token, parent in children]
    return tree


def probabilities(tree: CoverTree) -> dict[tuple[int, ...], float]:
    return {tree.cover(at).tokens: math.exp(value) for at, value in enumerate(tree.logprobs().tolist())}


def vocabulary_of(pieces: Sequence[bytes]) -> Vocabulary:
    """The pieces, and an end token behind them."""
    return Vocabulary([*pieces, None], width=len(pieces) + 1, end_ids=frozenset({len(pieces)}))


def the_tree(
    kept: Sequence[int], rest: bytes, logits: Logits, pieces: Sequence[bytes] = PIECES, **params: Any
) -> CoverTree:
    """The grown tree of these bytes."""
    tail = Tail(tuple(kept), rest, 1)
    return grown(CoverTree(tail, vocabulary_of(pieces), SamplingParams(**params), banned=frozenset()), logits)


# -- what is taken back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "options", "want"),
    [
        # "abc" may become "abca"; "cab" itself begins no longer token, but its "ab" and its "b" do.
        ([10, 5], {}, Tail((10,), b"abc", 1)),
        ([10, 8], {}, Tail((10,), b"cab", 1)),
        ([10, 10], {}, None),
        # "caa" may begin at the end of "abc" and end in what comes.
        ([10, 5, 0], {}, Tail((10,), b"abca", 2)),
        ([10, 0, 1, 2, 0], {}, Tail((10, 0, 1), b"ca", 2)),
        ([10, 5, 0], {"healable": 1}, Tail((10, 5), b"a", 1)),
        ([10, 5, 0], {"healable": 0}, None),
        ([10, 5, 0], {"fixed": frozenset({5})}, Tail((10, 5), b"a", 1)),
        # One token stays for the model to read, and so do control tokens.
        ([5], {}, None),
        ([5, 0], {}, Tail((5,), b"a", 1)),
        ([11, 0], {}, Tail((11,), b"a", 1)),
        ([5, 11], {}, None),
        # Spelled as bytes, the end of the prompt must fit the context with one more token behind it.
        ([10, 5, 0], {"max_context": 5}, Tail((10, 5), b"a", 1)),
    ],
)
def test_the_longest_tail_that_a_token_can_cross_is_taken_back(prompt, options, want) -> None:
    options = {"healable": None, "fixed": frozenset(), "max_context": 64, **options}
    assert find_tail(tuple(prompt), vocabulary_of(PIECES), **options) == want


# -- the distribution ------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=4).map(lambda raw: bytes(b"abc"[x % 3] for x in raw)), max_size=12),
    kept=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    rest=st.binary(min_size=1, max_size=6).map(lambda raw: bytes(b"abc"[x % 3] for x in raw)),
    heat=st.sampled_from([0.4, 1.0, 2.5]),
)
def test_covers_and_their_probabilities_equal_brute_force(pieces, kept, rest, heat) -> None:
    """Also of several tokens with the same bytes."""
    pieces = [b"a", b"b", b"c", *pieces]
    logits = TableModel(len(pieces) + 1).logits
    want = brute_force(logits, pieces, kept, rest, heat)
    total = math.fsum(want.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(healing, "_NODES", 100_000)
        got = probabilities(the_tree(kept, rest, logits, pieces, temperature=heat))
    assert got.keys() <= want.keys()
    for cover, probability in want.items():
        assert got.get(cover, 0.0) / total == pytest.approx(probability / total, rel=1e-9, abs=1e-10)


def test_the_next_byte_has_its_probability_given_the_bytes_before() -> None:
    """P(next byte | bytes), with both probabilities of a text summed over all token sequences that begin with it."""
    model = TableModel(END + 1)
    kept, rest = [10, 7], b"abcaab"
    whole = math.fsum(brute_force(model.logits, PIECES, kept, rest).values())
    ends: dict[int, float] = dict.fromkeys(b"abcd", 0.0)
    for tokens, probability in probabilities(the_tree(kept, rest, model.logits)).items():
        text = b"".join(PIECES[token] for token in tokens)
        if len(text) > len(rest):
            ends[text[len(rest)]] += probability
            continue
        table = torch.softmax(model.logits([*kept, *tokens]).double(), dim=-1).tolist()
        for piece, share in zip(PIECES, table, strict=False):
            ends[piece[0]] += probability * share
    for byte, probability in ends.items():
        longer = math.fsum(brute_force(model.logits, PIECES, kept, rest + bytes([byte])).values())
        assert probability / whole == pytest.approx(longer / whole, rel=1e-9)


def test_covers_equal_brute_force_on_a_transformer(list_tokenizer) -> None:
    with Engine.from_model(tiny_pieces(), list_tokenizer(PIECES), kv_tokens=200) as engine:

        def logits(tokens: Sequence[int]) -> torch.Tensor:
            kv, every = engine.model.new_kv(len(tokens)), list(range(len(tokens)))
            batch = RaggedBatch.of([Segment(list(tokens), 0, [], every, every)])
            with torch.inference_mode():
                line = torch.as_tensor(engine.model.forward(batch, kv))[-1]
                line[engine.tokenizer.n_tokens :] = -torch.inf
            return line

        prompt = engine.tokenizer.encode("dabcacababca")
        trees: list[CoverTree] = []
        choose = CoverTree.choose
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CoverTree, "choose", lambda tree, seeds: trees.append(tree) or choose(tree, seeds))
            out = engine.generate(prompt, token_healing=True, max_tokens=1, seed=1)
        tree = trees[0]
        assert out.healed == tree.tail.healed == 1 and tree.tail.rest == b"abca"
        want = brute_force(logits, engine.tokenizer.token_bytes, tree.tail.kept, tree.tail.rest)
        assert probabilities(tree) == pytest.approx(want, rel=1e-5)


def test_draws_follow_the_cumulative_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "uniform", lambda seed, position: (seed + 0.5) / 4000)
    model = TableModel(END + 1)
    tree = the_tree([10, 7], b"abcab", model.logits)
    want = brute_force(model.logits, PIECES, [10, 7], b"abcab")
    total = math.fsum(want.values())
    drawn = [cover.tokens for cover in tree.choose(range(4000))]
    assert len(set(drawn)) > 5
    for cover, probability in want.items():
        assert abs(drawn.count(cover) - 4000 * probability / total) <= 1.0


@pytest.mark.parametrize("text", [b"abcab", b"ca", b"abcaab", b"caab"])
def test_greedy_takes_the_most_probable_cover(text: bytes) -> None:
    logits = TableModel(END + 1, scale=1.0).logits
    found = []
    for first in range(END):
        want = brute_force(logits, PIECES, [first], text)
        found.append(the_tree([first], text, logits, temperature=0).choose([0])[0].tokens)
        assert found[-1] == max(want, key=lambda cover: want[cover])
    assert len(set(found)) > 1


def test_of_equally_probable_covers_greedy_takes_that_with_the_lower_ids() -> None:
    model = TableModel(END + 1, scale=0.0)
    assert the_tree([10], b"ca", model.logits, temperature=0).choose([0])[0].tokens == (6,)


def test_the_walk_that_renormalises_at_each_token_is_not_what_is_drawn() -> None:
    """ "a" is likely, but hardly ever followed by "b": a walk that looks at one token at a time goes there."""
    pieces = [b"a", b"b", b"ab", b"abc", b"x"]
    start = torch.log(torch.tensor([0.90, 0.01, 0.04, 0.02, 0.02, 0.01]))
    after = torch.log(torch.tensor([0.90, 0.001, 0.001, 0.001, 0.087, 0.01]))

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        return start if len(tokens) == 1 else after

    got = probabilities(the_tree([4], b"ab", logits, pieces))
    total = math.fsum(got.values())
    exact = {(2,): 0.04, (3,): 0.02, (0, 1): 0.9 * 0.001}
    assert {cover: value / total for cover, value in got.items()} == pytest.approx(
        {cover: value / 0.0609 for cover, value in exact.items()}, rel=1e-5
    )
    assert got[0, 1] / total < 0.02 < 0.9 / (0.9 + 0.04 + 0.02)  # what the walk gives it
    assert the_tree([4], b"ab", logits, pieces, temperature=0).choose([0])[0].tokens == (2,)


@pytest.mark.parametrize(
    "options",
    [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 1}, {"top_k": 4, "top_p": 0.7, "temperature": 2}],
)
def test_top_k_top_p_and_min_p_choose_among_the_covers(options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "uniform", lambda seed, position: (seed + 0.5) / 1000)
    model = TableModel(END + 1)
    heat = options.get("temperature", 1.0)
    ranked = sorted(brute_force(model.logits, PIECES, [10], b"abca", heat).items(), key=lambda pair: -pair[1])
    ranked = ranked[: options.get("top_k", len(ranked))]
    total, kept, mass = math.fsum(value for _, value in ranked), {}, 0.0
    for cover, value in ranked:
        if mass < options.get("top_p", 1.0) * total and value >= options.get("min_p", 0.0) * ranked[0][1]:
            kept[cover] = value
        mass += value
    tree = the_tree([10], b"abca", model.logits, **options)
    drawn = [cover.tokens for cover in tree.choose(range(1000))]
    assert set(drawn) == kept.keys()
    for cover, value in kept.items():
        assert abs(drawn.count(cover) - 1000 * value / math.fsum(kept.values())) <= 1.0


def test_bias_and_penalties_count_in_each_step() -> None:
    model = TableModel(END + 1)
    kept = [10, 3, 10]

    def changed(tokens: Sequence[int]) -> torch.Tensor:
        line = model.logits(tokens)
        seen = sorted(set(tokens))
        line[seen] = torch.where(line[seen] > 0, line[seen] / 1.7, line[seen] * 1.7)
        line[3] += 2.5
        return line

    tree = the_tree(kept, b"abcab", model.logits, repetition_penalty=1.7, logit_bias={3: 2.5}, frequency_penalty=1.5)
    assert probabilities(tree) == pytest.approx(brute_force(changed, PIECES, kept, b"abcab"), rel=1e-5)


def test_a_very_low_temperature_is_greedy_also_where_no_cover_is_near_the_best_token() -> None:
    model = TableModel(END + 1, scale=60.0)
    cold = the_tree([10], b"abca", model.logits, temperature=1e-3)
    assert np.isfinite(cold.logprobs()).any()
    assert len({cover.tokens for cover in cold.choose(range(20))}) == 1


def test_a_tree_that_grows_too_large_keeps_the_most_probable_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TableModel(END + 1)
    whole = probabilities(the_tree([10], b"abcabcab", model.logits))
    monkeypatch.setattr(healing, "_NODES", 6)
    tree = the_tree([10], b"abcabcab", model.logits)
    assert tree.limit == 6
    got = probabilities(tree)
    assert got.items() <= whole.items() and len(got) < len(whole)
    assert math.fsum(got.values()) > 0.5 * math.fsum(whole.values())


def test_ways_that_cannot_matter_are_not_computed() -> None:
    vocabulary = vocabulary_of([bytes([byte]) for byte in b"abcdefgh"] + [b"abcdefgh", b"abcdefghi"])
    line = torch.full((vocabulary.width,), -30.0)
    line[8:10] = 0.0
    tree = CoverTree(Tail((0,), b"abcdefgh", 1), vocabulary, SamplingParams(), banned=frozenset())
    tree.read(-1, line)
    assert tree.limit == 7 and tree.grow() == []


# -- in the engine ---------------------------------------------------------------------------------------------------


def expected(engine: Any, prompt: Sequence[int], seed: int, heat: float, legal: Callable[[bytes], bool]) -> list[int]:
    """The tokens behind the kept ones that a sample with this seed begins with, by brute force."""
    tail = find_tail(
        tuple(prompt), engine.tokenizer.vocabulary, healable=None, fixed=engine.tokenizer.eos_ids, max_context=64
    )
    assert tail is not None
    found = brute_force(engine.model.logits, PIECES, tail.kept, tail.rest, heat)
    # In the order of the tree: covers by the node of their last token, nodes level by level and the likeliest first.
    logits = engine.model.logits

    def reach(way: tuple[int, ...]) -> float:
        value = 1.0
        for at, token in enumerate(way):
            value *= float(torch.softmax(logits([*tail.kept, *way[:at]]).double() / heat, dim=-1)[token])
        return value

    order = sorted(found, key=lambda cover: (len(cover), -reach(cover[:-1]), cover[-1]))
    order = [cover for cover in order if legal(b"".join(PIECES[t] for t in cover)[len(tail.rest) :])]
    sums = np.cumsum([found[cover] for cover in order])
    point = uniform(seed, len(tail.kept)) * sums[-1]
    return list(order[int(np.searchsorted(sums, point, side="right"))])


@pytest.mark.parametrize("heat", [1.0, 0.6])
def test_the_engine_draws_the_cover_and_goes_on_as_plain_generation(table_engine, heat: float) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dabcaabcab")
    crossing = set()
    for seed in range(25):
        out = engine.generate(prompt, token_healing=True, max_tokens=5, seed=seed, temperature=heat)
        cover = expected(engine, prompt, seed, heat, lambda extra: True)
        kept = prompt[: -out.healed]
        assert list(out.tokens[: len(cover)]) == cover
        spelled = b"".join(PIECES[token] for token in (*kept, *out.tokens))
        assert spelled == b"dabcaabcab" + out.text.encode()
        extra = len(b"".join(PIECES[t] for t in (*kept, *cover))) > 10
        crossing.add(extra)
        plain = engine.generate([*kept, *cover], max_tokens=5 - extra, seed=seed, temperature=heat)
        assert out.tokens[len(cover) :] == plain.tokens
        assert out.finish_reason == plain.finish_reason
        assert out.usage.completion_tokens == plain.usage.completion_tokens + extra
        assert out.usage.prompt_tokens == len(prompt)
        assert 0 <= out.usage.cached_tokens <= len(kept)
    assert crossing == {True, False}


@pytest.mark.parametrize("pattern", ["[a-c]{4}", "ab*c?", "abc(abca)*", "a|bc"])
def test_under_a_constraint_covers_are_those_that_it_allows(table_engine, pattern: str) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dabcaabca")

    def legal(extra: bytes) -> bool:
        ends = ("", *"abc", *(x + y for x in "abc" for y in "abc"), "aaa", "bca", "abca", "abcabca")
        return not extra or any(re.fullmatch(pattern, extra.decode() + end) for end in ends)

    for seed in range(20):
        out = engine.generate(prompt, token_healing=True, max_tokens=12, seed=seed, regex=pattern)
        cover = expected(engine, prompt, seed, 1.0, legal)
        assert list(out.tokens[: len(cover)]) == cover
        assert b"".join(PIECES[token] for token in (*prompt[: -out.healed], *out.tokens)).endswith(out.text.encode())
        assert re.fullmatch(pattern, out.text) or out.finish_reason == "length"


def test_a_schema_decided_by_llguidance_heals_too(table_engine) -> None:
    engine = table_engine([*(bytes([byte]) for byte in range(32, 127)), b': "', b'{"', b'"}', b': {"', b' {"', b'":'])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    prompt = engine.tokenizer.encode("JSON: ")
    options = {"token_healing": True, "json_schema": schema, "max_tokens": 50, "logit_bias": {98: 9.0}}
    outs = [engine.generate(prompt, seed=seed, **options) for seed in range(8)]
    assert all(out.healed == 2 for out in outs)
    # Tokens that bring the beginning of the object with them are among the covers.
    assert {98, 99} & {out.tokens[0] for out in outs}
    assert all(re.match(r'\{"a":-?\d', out.text) for out in outs)


def test_samples_heal_each_by_its_own_seed(table_engine) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dabcaabcab")
    several = engine.generate(prompt, token_healing=True, max_tokens=4, seed=7, n=6)
    assert len({out.tokens for out in several}) > 1
    for index, out in enumerate(several):
        alone = engine.generate(prompt, token_healing=True, max_tokens=4, seed=sample_seed(7, index))
        assert (out.tokens, out.text, out.index) == (alone.tokens, alone.text, index)
        assert out.usage.prompt_tokens == len(prompt)
    best = engine.generate(prompt, token_healing=True, max_tokens=4, seed=7, best_of=6)
    assert best.tokens in {out.tokens for out in several}


def test_the_token_that_crosses_is_the_first_generated_one(table_engine) -> None:
    engine = table_engine()
    for seed in range(20):
        out = engine.generate(engine.tokenizer.encode("dab"), token_healing=True, seed=seed, max_tokens=1)
        assert out.usage.completion_tokens == 1 and out.finish_reason in ("length", "stop")
        assert b"".join(PIECES[token] for token in out.tokens) == b"ab" + out.text.encode()


def test_stops_see_the_text_of_the_token_that_crosses(table_engine) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dab")
    free = {seed: engine.generate(prompt, token_healing=True, seed=seed, max_tokens=1) for seed in range(40)}
    seed, out = next((seed, out) for seed, out in free.items() if out.text == "ca" and len(out.tokens) == 1)
    options = {"token_healing": True, "seed": seed, "max_tokens": 5}
    for stop, text in (("ca", ""), ("a", "c")):
        for keyword in ("stop", "stop_regex"):
            cut = engine.generate(prompt, **{keyword: stop}, **options)
            assert (cut.text, cut.finish_reason, cut.matched_stop) == (text, "stop", stop)
            # The rest of the token that was cut is spelled anew together with the prompt's end.
            assert b"".join(PIECES[t] for t in cut.tokens) == b"ab" + text.encode()
            assert cut.healed == out.healed
            chunks = list(engine.generate(prompt, stream=True, **{keyword: stop}, **options))
            assert "".join(chunk.text for chunk in chunks) == text
            assert tuple(token for chunk in chunks for token in chunk.tokens) == cut.tokens


def test_a_stream_joins_to_the_answer(table_engine) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dabcaabcab")
    for seed in range(12):
        for more in ({}, {"echo": True}, {"stop": ["bc"]}, {"regex": "[a-c]{6}"}):
            options = {"token_healing": True, "seed": seed, "max_tokens": 6, **more}
            out = engine.generate(prompt, **options)
            chunks = list(engine.generate(prompt, stream=True, **options))
            assert "".join(chunk.text for chunk in chunks) == out.text
            assert tuple(token for chunk in chunks for token in chunk.tokens) == out.tokens
            assert chunks[-1].output.healed == out.healed > 0


def test_echo_tells_the_prompt_with_its_end_spelled_anew(table_engine) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dabcaabcab")
    for seed in range(8):
        out = engine.generate(prompt, token_healing=True, seed=seed, max_tokens=3)
        echo = engine.generate(prompt, token_healing=True, seed=seed, max_tokens=3, echo=True)
        assert echo.text == "dabcaabcab" + out.text
        assert echo.tokens == (*prompt[: -out.healed], *out.tokens)


def test_log_probabilities_are_of_generated_tokens(table_engine) -> None:
    """That of the token that crosses is among the tokens that cross there."""
    engine = table_engine()
    prompt = engine.tokenizer.encode("dab")
    first_told = set()
    for seed in range(20):
        out = engine.generate(
            prompt, token_healing=True, seed=seed, max_tokens=4, logprobs=2, logprob_token_ids=[5, 10]
        )
        assert len(out.logprobs) == out.usage.completion_tokens
        if out.tokens[0] in (5, 7):
            crossing = torch.tensor([3, 5, 7])
            table = torch.log_softmax(engine.model.logits(prompt[:1])[crossing], dim=-1)
            by_id = dict(zip(crossing.tolist(), table.tolist(), strict=True))
            first = out.logprobs[0]
            assert first.token == out.tokens[0]
            assert first.logprob == pytest.approx(by_id[first.token], abs=1e-5)
            assert [token for token, _ in first.top] == sorted(by_id, key=lambda token: -by_id[token])[:2]
            assert first.asked[0] == (5, pytest.approx(by_id[5], abs=1e-5)) and first.asked[1] == (10, -math.inf)
        first_told.add(out.tokens[0])
    assert first_told & {5, 7}


def test_nothing_is_healed_where_nothing_crosses(table_engine) -> None:
    engine = table_engine()
    for prompt, more in (
        (engine.tokenizer.encode("dad"), {}),
        (engine.tokenizer.encode("ab"), {}),
        (engine.tokenizer.encode("dab"), {"max_tokens": 0}),
        (engine.tokenizer.encode("dab"), {"regex": ""}),
        # "abc" and "abca" go on from "ab"; the constraint allows neither.
        (engine.tokenizer.encode("dab"), {"regex": "[bd]+"}),
    ):
        options = {"seed": 3, "max_tokens": 4, **more}
        healed, plain = (engine.generate(prompt, token_healing=flag, **options) for flag in (True, False))
        assert (healed.tokens, healed.text, healed.healed) == (plain.tokens, plain.text, 0)


def test_what_contradicts_healing_is_refused(table_engine) -> None:
    engine = table_engine(kv_tokens=4)
    with pytest.raises(ArgumentError, match="prompt_logprobs"):
        engine.generate([10, 3], token_healing=True, prompt_logprobs=0)
    # "d", "d", and of "abc" the nodes "a", "ab", "a" + "b".
    with pytest.raises(ContextLengthError, match="healing the prompt may need 5 KV slots"):
        engine.generate([10, 10, 5], token_healing=True)
    assert engine.generate([10, 10, 5], max_tokens=1, seed=0).healed == 0


# -- schedules -------------------------------------------------------------------------------------------------------


def tiny_pieces() -> Model:
    """A random transformer over PIECES, with a row of padding in its logits."""
    arch = tiny_architecture(vocab=END + 2)
    weights = random_weights(arch, 5)
    return Model(arch, lambda name, layer: weights[name, layer])


REQUESTS = [
    (text, {"seed": seed, **more})
    for text in ("dabcaabcab", "dabcaabcabcab", "dabca", "dcaabcabc")
    for seed, more in enumerate(
        [{}, {"temperature": 0.7, "logprobs": 1}, {"temperature": 0}, {"n": 2}, {"regex": "[a-c]{2,5}"}, {"top_p": 0.8}]
    )
]


async def answers(engine: Engine) -> list[Any]:
    """The outputs of all requests, which all are there before the engine looks at one."""
    gate = threading.Event()
    engine._loop.post(lambda core: gate.wait(30))

    async def answer(text: str, options: dict[str, Any]) -> Any:
        outs = await engine.agenerate(engine.tokenizer.encode(text), token_healing=True, max_tokens=6, **options)
        several = outs if isinstance(outs, list) else [outs]
        return [(out.text, out.tokens, out.healed, out.logprobs, out.finish_reason) for out in several]

    tasks = [asyncio.ensure_future(answer(text, options)) for text, options in REQUESTS]
    await asyncio.sleep(0.05)
    gate.set()
    return await asyncio.gather(*tasks)


def test_the_same_tokens_in_every_schedule(list_tokenizer) -> None:
    model, tokenizer = tiny_pieces(), list_tokenizer(PIECES)
    with Engine.from_model(model, tokenizer, kv_tokens=900, max_running=1, cache=False) as quiet:
        alone = asyncio.run(answers(quiet))
    assert any(out[2] > 1 for outs in alone for out in outs)
    preemptions = 0
    for options in (
        {"kv_tokens": 2000},
        {"kv_tokens": 2000, "max_step_tokens": 1},
        {"kv_tokens": 300, "max_step_tokens": 5},
        {"kv_tokens": 40, "max_step_tokens": 64},
        {"kv_tokens": 56, "max_step_tokens": 64},
        {"kv_tokens": 80, "max_step_tokens": 64},
    ):
        with Engine.from_model(model, tokenizer, **options) as engine:
            # As if all outputs had been short lately: too much is let in.
            engine._loop.call(lambda core: [core.scheduler.outlook.lengths.record(1) for _ in range(64)])
            for _ in range(2):  # cold, warm
                assert asyncio.run(answers(engine)) == alone, options
            assert engine.check_integrity() == []
            preemptions += engine.stats()["preemptions"]
            engine.flush_cache()
            assert engine.stats()["kv_free"] == options["kv_tokens"]
    assert preemptions > 5


def test_a_tree_that_loses_its_slots_grows_on() -> None:
    """Also in the middle of a level: what was read is read once more, and nothing is different."""
    model: Any = TableModel(END + 1)
    want = the_tree([10, 0], b"abcaabcab", model.logits)
    tail = Tail((10, 0), b"abcaabcab", 3)
    for before in range(1, 12):
        core = EngineCore(
            model, token_count=END + 1, kv_tokens=300, max_running=1, max_step_tokens=3, policy="priority"
        )
        trees = [CoverTree(tail, vocabulary_of(PIECES), SamplingParams(), banned=frozenset()) for _ in range(2)]
        answered: list[Any] = []
        low, high = (CoverJob(tree, answered.append, priority=at) for at, tree in enumerate(trees))
        core.add(low)
        for _ in range(before):
            core.step()
        core.add(high)
        while core.busy:
            core.step()
        assert answered == [high, low] and low.preemptions == 1
        for tree in trees:
            assert tree.logprobs().tolist() == want.logprobs().tolist()
        assert core.check_integrity() == []
        core.close()


def test_what_was_computed_to_choose_is_not_computed_again(table_engine) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dabcaabcab")
    out = engine.generate(prompt, token_healing=True, seed=1, max_tokens=1)
    kept = prompt[: -out.healed]
    rest = b"".join(PIECES[token] for token in prompt[-out.healed :])
    nodes = len(the_tree(kept, rest, engine.model.logits)._nodes) - 1
    # Those, and what the way of the cover needs anew: the last kept token or node, for its logits, and the last token.
    assert engine.stats()["computed_tokens"] <= len(kept) + nodes + 2
    again = engine.generate(prompt, token_healing=True, seed=1, max_tokens=1)
    assert again.usage.cached_tokens == len(prompt) - out.healed - 1


# -- ends ------------------------------------------------------------------------------------------------------------


async def cancelled_at(engine: Any, prompt: Sequence[int], calls: int, n: int) -> list[Any]:
    """The events of a request that is cancelled while the model is called for the `calls`-th time."""
    events: list[Any] = []
    engine.model.gate.clear()
    group = engine._intake.generate(
        GenerateRequest(tuple(prompt), SamplingParams(token_healing=True, n=n, max_tokens=9), stream=True),
        events.append,
    )
    while engine.model.calls < calls:
        if calls > 1:
            engine.model.gate.set()
            engine.model.gate.clear()
        await asyncio.sleep(0.002)
    engine._intake.cancel(group)
    engine.model.gate.set()
    for _ in range(500):
        if any(not isinstance(event, Delta) for event in events):
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    return events


@pytest.mark.parametrize("n", [1, 3])
def test_a_request_cancelled_while_it_heals_ends_once(table_engine, n: int) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dabcaabcab")
    events = asyncio.run(cancelled_at(engine, prompt, 1, n))
    assert [type(event) for event in events] == [Finished]
    assert [out.finish_reason for out in events[0].outputs] == ["cancelled"] * n
    assert all(out.text == "" and out.healed == 0 for out in events[0].outputs)
    assert engine.generate(prompt, token_healing=True, max_tokens=2, seed=1).healed == 2


def test_a_fault_while_it_heals_ends_the_request_once(table_engine) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dabcaabcab")
    engine.model.fails = True
    events: list[Any] = []
    engine._intake.generate(GenerateRequest(tuple(prompt), SamplingParams(token_healing=True, n=2)), events.append)
    for _ in range(500):
        if events:
            break
        threading.Event().wait(0.01)
    assert [type(event) for event in events] == [Failed]
    assert isinstance(events[0].error, BackendError)
    engine.model.fails = False
    assert engine.generate(prompt, token_healing=True, max_tokens=2, seed=1).healed == 2
    engine.model.gate.clear()
    engine._intake.generate(GenerateRequest(tuple(prompt), SamplingParams(token_healing=True)), events.append)
    threading.Timer(0.1, engine.model.gate.set).start()
    engine.close()
    assert [type(event) for event in events] == [Failed, Failed]


# -- in programs -----------------------------------------------------------------------------------------------------


def test_a_program_goes_on_from_the_prompt_as_it_was_spelled_anew(table_engine) -> None:
    engine = table_engine()
    sent: list[Any] = []
    submit = engine.submit
    engine.submit = lambda request: sent.append(request) or submit(request)

    @pt.function
    def program(s: Any, n: int) -> None:
        s += "dabcaabcab"
        s += pt.gen("first", max_tokens=3, token_healing=True, n=n, stop=["d"])
        s += pt.gen("second", max_tokens=2, token_healing=True)

    for n, seed in ((1, 1), (1, 2), (1, 3), (2, 4)):
        sent.clear()
        state = program.run(n=n, backend=engine, seed=seed)
        first = state.result("first")[0] if n > 1 else state.result("first")
        assert state.text() == "dabcaabcab" + first.text + state["second"]
        assert sent[0].healable == len(sent[0].tokens) and sent[1].healable == 0
        kept = len(sent[1].tokens) - len(first.tokens)
        assert kept < len(sent[0].tokens)
        assert sent[1].tokens == (*sent[0].tokens[:kept], *first.tokens)
        assert b"".join(PIECES[token] for token in sent[1].tokens) == b"dabcaabcab" + first.text.encode()


def test_only_literal_text_is_taken_back_in_a_program(table_engine) -> None:
    engine = table_engine()

    @pt.function
    def program(s: Any) -> None:
        s += "dd"
        s += pt.gen("first", regex="abc")
        s += "a"
        s += pt.gen("second", max_tokens=2, token_healing=True)

    sent: list[Any] = []
    submit = engine.submit
    engine.submit = lambda request: sent.append(request) or submit(request)
    state = program.run(backend=engine, seed=2)
    assert state["first"] == "abc" and state.text().startswith("ddabca")
    assert sent[1].healable == 1


def test_a_backend_that_does_not_heal_refuses_by_name() -> None:
    @pt.function
    def program(s: Any) -> None:
        s += "x" + pt.gen("y", token_healing=True)

    with pytest.raises(pt.CapabilityError, match="token_healing"):
        program.run(backend=MockBackend())


@pytest.mark.parametrize("heat", [1e-300, 1e-308, 5e-324])
def test_at_the_least_temperatures_the_likeliest_cover_is_certain(table_engine, heat: float) -> None:
    engine = table_engine()
    prompt = engine.tokenizer.encode("dabcaabca")
    cold = [engine.generate(prompt, token_healing=True, max_tokens=4, seed=seed, temperature=1e-6) for seed in range(6)]
    for seed, want in enumerate(cold):
        out = engine.generate(prompt, token_healing=True, max_tokens=4, seed=seed, temperature=heat)
        assert (out.tokens, out.healed) == (want.tokens, want.healed)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_model_that_gives_no_numbers_ends_a_healing_by_that(table_engine, monkeypatch, value: float) -> None:
    engine = table_engine()
    monkeypatch.setattr(TableModel, "logits", lambda self, tokens: torch.full((self.vocab_width,), value))
    for heat in (0, 1):
        with pytest.raises(BackendError, match="the model gives no numbers where the prompt's end, 'ab', is healed"):
            engine.generate(engine.tokenizer.encode("dab"), token_healing=True, max_tokens=3, temperature=heat)


def test_token_healing_is_a_default_of_the_run(table_engine) -> None:
    engine = table_engine()

    @pt.function
    def program(s: Any) -> None:
        s += "dabca" + pt.gen("x", max_tokens=4) + pt.gen("y", max_tokens=4, token_healing=False)

    def healed(**settings: Any) -> int:
        return program.run(backend=engine, seed=3, **settings).result("x").healed

    assert healed() == healed(token_healing=False) == 0
    assert healed(token_healing=True) > 0
    other = pt.function(token_healing=True)(program.body)
    result = other.run(backend=engine, seed=3).result("x")
    assert result.healed == healed(token_healing=True) == result.meta_info()["healed"]
    assert other.run(backend=engine, seed=3, token_healing=False).result("x").healed == 0
    with pytest.raises(TypeError, match="token_healing= takes True or False"):
        program.run(backend=engine, token_healing="yes")
    # Where nothing is to be healed, no backend need be able to.
    assert program.run(backend=MockBackend(default="a"), token_healing=False)["x"] == "a"
    with pytest.raises(pt.CapabilityError, match="token_healing"):
        program.run(backend=MockBackend(default="a"), token_healing=True)
