"""SmolLM2-135M-Instruct: the same greedy tokens as transformers in fp32, in every schedule; valid JSON."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from palmette.runtime.engine import Engine
    from palmette.runtime.protocol import Output

# Loading the model into transformers takes half a minute of an idle machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

NEW_TOKENS = 8
TEXT = (
    "The lighthouse at the end of the pier had been dark for eleven years when the council decided to light it again. "
    "Nobody could say who still kept the key, so they sent for the harbour master, an old woman with a limp, who "
    "laughed and told them that the door had never been locked. Inside they found three chairs, a table laid for "
    "supper, and a logbook whose last entry read: 'Wind north-west, four ships, 1,204 gulls.' "
)
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 100, 150, 300, 600)


@pytest.fixture(scope="module")
def prompts(real_engine: Engine) -> list[list[int]]:
    """20 prompts of 1 to 600 tokens, each beginning at another place of the text."""
    ids = real_engine.tokenizer.encode(TEXT * 12)
    return [ids[start : start + length] for start, length in zip(range(3, 63, 3), LENGTHS, strict=True)]


@pytest.fixture(scope="module")
def reference(prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """Greedy continuations by transformers in fp32, from the same GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM

    from palmette.runtime.models.registry import resolve

    path = Path(resolve("smollm2-135m"))
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                do_sample=False,
                pad_token_id=0,
            )
        expected.append(tuple(out[0, len(prompt) :].tolist()))
    return expected


def greedy(engine: Engine, prompts: list[list[int]]) -> list[Output]:
    return engine.generate(prompts, max_tokens=NEW_TOKENS, min_tokens=NEW_TOKENS, temperature=0, logprobs=0)


@pytest.fixture(scope="module")
def cold(real_engine: Engine, prompts: list[list[int]]) -> list[Output]:
    """Each prompt by itself, with nothing in the cache."""
    outs = []
    for prompt in prompts:
        real_engine.flush_cache()
        outs += greedy(real_engine, [prompt])
    return outs


def test_greedy_equals_transformers_cold_and_warm(
    real_engine: Engine, prompts: list[list[int]], reference: list[tuple[int, ...]], cold: list[Output]
) -> None:
    assert [out.tokens for out in cold] == reference
    greedy(real_engine, prompts)
    warm = [greedy(real_engine, [prompt])[0] for prompt in prompts]
    assert all(out.usage.cached_tokens >= len(prompt) - 1 for out, prompt in zip(warm, prompts, strict=True))
    assert [out.tokens for out in warm] == reference
    # The same bits, not only the same tokens.
    assert [out.logprobs for out in warm] == [out.logprobs for out in cold]


@pytest.mark.parametrize("settings", [{"max_running": 16}, {"max_step_tokens": 7}])
def test_greedy_equals_transformers_in_a_batch_of_16_and_in_chunks_of_7(
    real_engine: Engine,
    prompts: list[list[int]],
    reference: list[tuple[int, ...]],
    cold: list[Output],
    settings: dict[str, int],
) -> None:
    from palmette.runtime.engine import Engine

    with Engine.from_model(real_engine.model, real_engine.tokenizer, **settings) as engine:
        outs = greedy(engine, prompts)
    assert [out.tokens for out in outs] == reference
    assert [out.logprobs for out in outs] == [out.logprobs for out in cold]


def test_a_message_gets_an_answer(real_engine: Engine) -> None:
    out = real_engine.generate(
        [{"role": "user", "content": "What is the capital of France?"}], max_tokens=12, temperature=0
    )
    assert "Paris" in out.text
    assert out.finish_reason in ("stop", "length")


def test_select_equals_brute_force(real_engine: Engine) -> None:
    import math

    prompt = "The capital of France is"
    options = [" Paris", " London", " Paris, of course", " a city"]
    result = real_engine.score(prompt, options)
    sums = {}
    for option in options:
        ids = real_engine.tokenizer.encode(option)
        total, tokens = 0.0, list(real_engine.tokenizer.encode(prompt))
        for token in ids:
            out = real_engine.generate(tokens, max_tokens=1, temperature=0, logprobs=real_engine.tokenizer.n_tokens)
            total += dict(out.logprobs[0].top)[token]
            tokens.append(token)
        sums[option] = total
    want = [sums[option] for option in options]
    want[0] = math.log(math.exp(sums[" Paris"]) - math.exp(sums[" Paris, of course"]))
    assert result.logprobs == pytest.approx(want, abs=1e-4)
    assert result.choice == " Paris"


def schemas(count: int) -> list[dict[str, Any]]:
    """Schemas of the shared data that compile, of all splits, small enough to be filled in by a small model."""
    from palmette.errors import ConstraintError
    from palmette.runtime.constraints.compile import validate
    from palmette.runtime.protocol import Constraint

    path = Path(__file__).resolve().parents[3] / "shared" / "data" / "constraints" / "maskbench.jsonl.gz"
    if not path.exists():
        pytest.skip("the shared constraint data is not beside this checkout")
    found: list[dict[str, Any]] = []
    with gzip.open(path, "rt") as lines:
        for number, line in enumerate(lines):
            if number % 90:
                continue
            record = json.loads(line)
            if len(json.dumps(record["schema"])) > 3000:
                continue
            try:
                validate(Constraint("json_schema", json.dumps(record["schema"])))
            except ConstraintError:
                continue
            found.append(record["schema"])
            if len(found) == count:
                break
    assert len(found) == count
    return found


def test_json_under_50_schemas_validates(real_engine: Engine) -> None:
    import jsonschema
    from jsonschema.validators import validator_for

    from palmette.errors import ConstraintError

    chosen = schemas(50)
    prompt = [{"role": "user", "content": "Make up a short example in JSON."}]

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(
            *(
                real_engine.agenerate(prompt, json_schema=schema, temperature=1.0, seed=seed, max_tokens=100)
                for seed, schema in enumerate(chosen)
            ),
            return_exceptions=True,
        )

    ended = 0
    for schema, out in zip(chosen, asyncio.run(all_at_once()), strict=True):
        if isinstance(out, BaseException):
            assert isinstance(out, ConstraintError), out
        elif out.finish_reason == "constraint":
            ended += 1
            validator = validator_for(schema, default=jsonschema.Draft202012Validator)
            validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(out.text))
    assert ended >= 25


def test_drafts_change_nothing_but_the_steps() -> None:
    """Weights in the blocks of the file, where tiles of rows and single rows are other code."""
    from palmette.runtime.engine import Engine

    people = [("Alice", "Paris"), ("Bruno", "Lisbon"), ("Chen", "Taipei"), ("Dora", "Athens")]
    table = [{"id": i, "name": name, "city": city, "active": True} for i, (name, city) in enumerate(people)]
    question = "Repeat this JSON exactly, but with the city of Chen changed to Osaka:\n" + json.dumps(table, indent=1)
    answers, steps = [], []
    for setting in ("off", 12):
        with Engine("smollm2-135m", speculation=setting, kv_tokens=4096) as engine:
            prompt = [{"role": "user", "content": question}]
            outs = [
                engine.generate(prompt, max_tokens=110, temperature=0.3, seed=1, logprobs=1),
                engine.generate(prompt, max_tokens=40, temperature=1.0, seed=2, repetition_penalty=1.05, logprobs=0),
                engine.generate(prompt, max_tokens=90, temperature=0, regex=r'(\{"city": "[A-Z][a-z]{1,9}"\}\n){9}'),
            ]
            answers.append([(out.tokens, out.text, out.finish_reason, out.logprobs) for out in outs])
            steps.append(engine.stats()["steps"])
    assert answers[0] == answers[1]
    assert steps[1] < 0.8 * steps[0]
