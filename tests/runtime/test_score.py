"""select's scores against brute force: every option's log-probability by plain forward passes."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from palmette.errors import ConstraintError, PalmetteError
from palmette.kernels.ragged import RaggedBatch, Segment
from palmette.runtime.constraints.vocabulary import Vocabulary
from palmette.runtime.protocol import ByChoice
from palmette.runtime.score import Boundary, OptionTree, find_boundary

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]


def vocabulary_of(pieces: list[Any]) -> Vocabulary:
    return Vocabulary(pieces, width=len(pieces), end_ids=frozenset())


def brute_force(engine: Any, prompt: list[int], option: list[int]) -> list[float]:
    """Log-probability of each token of `option` behind `prompt`."""
    tokens = [*prompt, *option]
    kv = engine.model.new_kv(len(tokens))
    every = list(range(len(tokens)))
    batch = RaggedBatch.of([Segment(tokens, 0, [], every, every)])
    logits = torch.as_tensor(engine.model.forward(batch, kv))[:, : engine.tokenizer.n_tokens].double()
    table = torch.log_softmax(logits, dim=-1)
    return [float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(option)]


def test_a_row_of_logits_becomes_the_log_probabilities_that_torch_has() -> None:
    vocabulary = vocabulary_of([bytes([97 + i]) for i in range(20)])
    tree = OptionTree(Boundary((0,), ((3,), (7,), (19,)), b"", 0), vocabulary)
    logits = 30 * torch.randn(20, generator=torch.Generator().manual_seed(1))
    expected = torch.log_softmax(logits.double(), -1)
    for line in (logits, logits.numpy()):
        tree.read(-1, line)
        found = [tree.token_logprobs(option)[0] for option in range(3)]
        assert found == pytest.approx(expected[[3, 7, 19]].tolist(), rel=1e-14)
    tree.read(-1, np.where(np.arange(20) == 7, logits.numpy(), -np.inf))
    assert [tree.token_logprobs(option)[0] for option in range(3)] == [-math.inf, 0.0, -math.inf]


@pytest.mark.parametrize("settings", [{}, {"max_step_tokens": 3}, {"cache": False}])
def test_scores_equal_brute_force(tiny_engine: Make, settings: dict[str, Any]) -> None:
    engine = tiny_engine(**settings)
    prompt = list(b"The answer is")
    options = [" yes", " no", " maybe so", " mayor", "!"]
    for _ in range(2):  # cold, warm
        result = engine.score(prompt, options)
        sums = [math.fsum(brute_force(engine, prompt, list(option.encode()))) for option in options]
        assert result.logprobs == pytest.approx(sums, abs=1e-4)
        total = math.fsum(map(math.exp, sums))
        assert result.label_mass == pytest.approx(total, rel=1e-4)
        assert result.probabilities == pytest.approx([math.exp(value) / total for value in sums], rel=1e-3)
        assert result.choice == options[max(range(5), key=lambda i: sums[i])] == options[result.index]


def test_each_node_of_the_tree_is_computed_once(tiny_engine: Make) -> None:
    engine = tiny_engine()
    engine.score(list(b"prompt"), ["abcd", "abce", "abx", "q"])
    # The prompt, and the inner nodes a, ab, abc.
    assert engine.stats()["computed_tokens"] == 6 + 3
    engine.score(list(b"prompt"), ["abcd", "abce", "abx", "q"])
    warm = engine.stats()["computed_tokens"] - 9
    assert warm <= 1 + 3


def test_the_chosen_option_is_in_the_cache(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = list(b"prompt")
    result = engine.score(prompt, ["abcd", "bbbb"])
    out = engine.generate([*prompt, *result.tokens[result.index]], max_tokens=1)
    assert out.usage.cached_tokens == len(prompt) + 3


def test_a_shorter_option_loses_what_goes_on_to_the_longer(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = list(b"Who? ")
    result = engine.score(prompt, ["An", "Anna", "Annabel", "Bo"])
    raw = {
        o: math.exp(math.fsum(brute_force(engine, prompt, list(o.encode())))) for o in ("An", "Anna", "Annabel", "Bo")
    }
    want = [raw["An"] - raw["Anna"], raw["Anna"] - raw["Annabel"], raw["Annabel"], raw["Bo"]]
    assert [math.exp(value) for value in result.logprobs] == pytest.approx(want, rel=1e-3)
    assert result.label_mass == pytest.approx(raw["An"] + raw["Bo"], rel=1e-3)


def test_methods(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt, options = list(b"Pick: "), ["a", "bcd", "bce", "xyzxyz"]
    each = [brute_force(engine, prompt, list(option.encode())) for option in options]
    mean = engine.score(prompt, options, method="token_length_normalized")
    assert mean.scores == pytest.approx([math.fsum(v) / len(v) for v in each], abs=1e-4)
    start = [min(engine.tokenizer.eos_ids)] if engine.tokenizer.bos_id is None else [engine.tokenizer.bos_id]
    plain = [brute_force(engine, start, list(option.encode())) for option in options]
    freed = engine.score(prompt, options, method="unconditional_likelihood_normalized")
    want = [(math.fsum(a) - math.fsum(b)) / len(a) for a, b in zip(each, plain, strict=True)]
    assert freed.scores == pytest.approx(want, abs=1e-4)
    walk = engine.score(prompt, options, method="greedy_token_selection")
    first = {option[0]: values[0] for option, values in zip(options, each, strict=True)}
    best = max(first, key=lambda c: first[c])
    assert walk.choice.startswith(best)
    assert math.fsum(walk.probabilities) == pytest.approx(1.0)
    assert mean.method == "token_length_normalized"


def test_a_mean_counts_exact_zeros() -> None:
    """PITFALLS rows 18, 19: log-probabilities of exactly 0 are values like any other."""
    tree = OptionTree(Boundary((1,), ((1, 2, 3, 4), (5,)), b"", 0), vocabulary_of([b"x"] * 6))
    for node, value in zip(tree.path(0), (-2.0, 0.0, 0.0, 0.0), strict=True):
        tree.nodes[node].logprob = value
    assert math.fsum(tree.token_logprobs(0)) / 4 == -0.5
    tree.nodes[tree.path(1)[0]].logprob = 0.0
    assert math.fsum(tree.token_logprobs(1)) / 1 == 0.0


def test_drawing_from_the_distribution(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt, options = list(b"Pick: "), ["a", "b", "c"]
    probabilities = engine.score(prompt, options).probabilities
    drawn = [engine.score(prompt, options, temperature=1.0, seed=i).index for i in range(300)]
    for index in range(3):
        assert abs(drawn.count(index) / 300 - probabilities[index]) < 0.1
    assert engine.score(prompt, options, temperature=1.0, seed=5).index == drawn[5]


def test_the_boundary_heals_inside_a_token() -> None:
    pieces: list[bytes | None] = [b"is", b" ", b" yes", b" no", b"yes", b"no", b"!", None]

    def encode(text: str) -> list[int]:
        ids, rest = [], text.encode()
        while rest:
            best = max(
                (i for i, p in enumerate(pieces) if p and rest.startswith(p)), key=lambda i: len(pieces[i] or b"")
            )
            ids.append(best)
            rest = rest[len(pieces[best] or b"") :]
        return ids

    tools = {"bytes_of": pieces, "encode": encode}
    healed = find_boundary([7, 0, 1], ["yes", "no"], healable=None, **tools)
    assert healed == Boundary((7, 0), ((2,), (3,)), b" ", 1)
    assert find_boundary([7, 0], [" yes", " no"], healable=None, **tools) == Boundary((7, 0), ((2,), (3,)), b"", 0)
    assert find_boundary([7, 0, 1], ["yes", "!"], healable=None, **tools) == Boundary((7, 0), ((2,), (1, 6)), b" ", 1)
    # Generated tokens are not the caller's to rewrite.
    kept = find_boundary([7, 0, 1], ["yes", "no"], healable=0, **tools)
    assert kept == Boundary((7, 0, 1), ((4,), (5,)), b"", 0)
    # Given " ", the mass is that of the tokens that begin with it.
    tree = OptionTree(healed, vocabulary_of(pieces))
    logits = torch.log(torch.tensor([0.4, 0.1, 0.2, 0.1, 0.1, 0.05, 0.05, 1e-9]))
    tree.read(-1, logits)
    assert [math.exp(tree.token_logprobs(i)[0]) for i in (0, 1)] == pytest.approx([0.5, 0.25])


def test_wrong_choices(tiny_engine: Make) -> None:
    engine = tiny_engine()
    for choices in ([], [""], ["a", "a"]):
        with pytest.raises(ConstraintError):
            engine.score("x", choices)
    with pytest.raises(PalmetteError, match="probability"):
        engine.score("x", ["a", "b"], method="probabilty")
    with pytest.raises(PalmetteError, match="temperature"):
        engine.score("x", ["a", "b"], temperature=-1)
    with pytest.raises(PalmetteError, match="context"):
        engine.score([1] * 3000, ["a", "b"])


def test_numbers_by_choice_are_found_by_place_and_by_text() -> None:
    numbers = ByChoice(["yes", "no"], [0.75, 0.25])
    assert (numbers[0], numbers["no"], numbers.get("maybe"), list(numbers)) == (0.75, 0.25, None, [0.75, 0.25])
    assert numbers == (0.75, 0.25) and dict(numbers.items()) == {"yes": 0.75, "no": 0.25}
    assert pickle.loads(pickle.dumps(numbers)).items() == copy.deepcopy(numbers).items() == numbers.items()
    with pytest.raises(KeyError, match="none of the choices"):
        numbers["maybe"]
    with pytest.raises(TypeError, match="choices the texts"):
        max(numbers, key=numbers.get)


def test_a_prompt_of_one_token_that_an_option_would_swallow_is_not_healed() -> None:
    """One token must stay for the model to read; the options are spelled by themselves then, none by nothing."""
    spelling = [b"<s>", b" ", b" yes", b"yes", b"no"]
    ids = {" ": [1], "yes": [3], " yes": [2], "no": [4], " no": [1, 4]}
    boundary = find_boundary([1], ["yes", "no"], healable=None, bytes_of=spelling, encode=ids.__getitem__)
    assert boundary == Boundary((1,), ((3,), (4,)), b"", 0)


def test_options_that_the_tokenizer_does_not_tell_apart_are_refused() -> None:
    for spelled in (((1,), (1,)), ((1,), ())):
        with pytest.raises(ConstraintError, match="choice 1"):
            OptionTree(Boundary((0,), spelled, b"", 0), vocabulary_of([b"a", b"b"]))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"choices": "yes"}, TypeError, "list of str"),
        ({"choices": None}, TypeError, "list of str"),
        ({"choices": ["\ud800", "b"]}, ConstraintError, "choice 0"),
        ({"temperature": "x"}, TypeError, "temperature"),
        ({"temperature": float("nan")}, PalmetteError, "temperature"),
        ({"seed": "x"}, TypeError, "seed"),
        ({"method": None}, PalmetteError, "method"),
        ({"namespace": ["x"]}, TypeError, "namespace"),
        ({"metod": "probability"}, TypeError, "did you mean 'method'"),
    ],
)
def test_wrong_arguments_of_score_are_refused_at_once(tiny_engine, options, error, words) -> None:
    with pytest.raises(error, match=words):
        tiny_engine().score("q", **{"choices": ["a", "b"], **options})
