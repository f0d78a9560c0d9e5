"""Stops that are tokens: control tokens that a stop string names, and stop_token_ids inside a structure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import palmette as pt
from palmette.errors import ConstraintError

pytestmark = pytest.mark.tiny

Make = Callable[..., Any]
PROMPT = list(b"once")


def script(tokens: list[int]) -> dict[str, Any]:
    """Options under which the tiny model can only say these tokens, the first of them the likeliest at all times."""
    return {"logit_bias": {token: 90.0 - 30 * place for place, token in enumerate(tokens)}, "temperature": 0}


def test_a_stop_string_that_spells_a_control_token_is_that_token(tiny_engine: Make) -> None:
    engine = tiny_engine()
    end, begin = engine.tokenizer.control["<|im_end|>"], engine.tokenizer.control["<|im_start|>"]
    options = {"max_tokens": 6, **script([end])}
    free = engine.generate(PROMPT, **options)
    assert free.tokens == (end,) * 6 and free.text == ""
    out = engine.generate(PROMPT, stop="<|im_end|>", **options)
    assert (out.tokens, out.text, out.finish_reason, out.matched_stop) == ((), "", "stop", "<|im_end|>")
    assert out.usage.completion_tokens == 1
    # Only what is just its spelling names it, and only the one that it names.
    for stop in ("<|im_end|>\n", " <|im_end|>", "<|im_end", "<|im_start|>"):
        assert engine.generate(PROMPT, stop=stop, **options).tokens == (end,) * 6
    both = engine.generate(PROMPT, stop=["<|im_start|>", "x"], **{**options, **script([begin])})
    assert (both.tokens, both.matched_stop) == ((), "<|im_start|>")
    # As any end, it is held back by min_tokens, and counts where it is the model's own end as well.
    late = engine.generate(PROMPT, stop="<|im_end|>", min_tokens=2, max_tokens=6, **script([end, ord("a")]))
    assert (late.text, late.matched_stop) == ("aa", "<|im_end|>")
    own = engine.tokenizer.control["<eos>"]
    asked = engine.generate(PROMPT, stop="<eos>", ignore_eos=True, max_tokens=6, **script([own]))
    assert (asked.tokens, asked.matched_stop) == ((), "<eos>")


def test_its_letters_stop_a_text_too(tiny_engine: Make) -> None:
    engine = tiny_engine()
    options = {"regex": r"a(?:<\|im_end\|>b)?", "max_tokens": 20, **script([ord("<")])}
    assert engine.generate(PROMPT, **options).text == "a<|im_end|>b"
    out = engine.generate(PROMPT, stop="<|im_end|>", **options)
    assert (out.text, out.finish_reason, out.matched_stop) == ("a", "stop", "<|im_end|>")


def test_programs_stop_at_control_tokens_too(tiny_engine: Make) -> None:
    engine = tiny_engine()
    end = engine.tokenizer.control["<|im_end|>"]

    @pt.function
    def program(s: Any) -> None:
        s += "once " + pt.gen("x", stop=["<|im_end|>", "\n"], max_tokens=5, **script([end]))

    result = program.run(backend=engine).result("x")
    assert (result.text, result.finish_reason, result.matched_stop) == ("", "stop", "<|im_end|>")


def test_a_control_stop_ends_a_structure_only_where_it_is_complete(tiny_engine: Make) -> None:
    engine = tiny_engine()
    end = engine.tokenizer.control["<|im_end|>"]
    options = {"stop": "<|im_end|>", "max_tokens": 9, **script([end, ord("7")])}
    assert engine.generate(PROMPT, regex="[0-9]{3,6}", **options).text == "777"
    assert engine.generate(PROMPT, regex="[0-9]{3,6}", min_tokens=5, **options).text == "77777"


def test_the_token_that_a_prompt_ends_in_stays_where_a_stop_names_it(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = engine.tokenizer.encode_prompt("a<|im_end|>")
    out = engine.generate(prompt, stop="<|im_end|>", token_healing=True, max_tokens=2, seed=1)
    assert out.healed == 0


# -- stop_token_ids inside a structure -------------------------------------------------------------------------------


def test_an_ordinary_stop_token_may_only_come_where_the_text_is_complete(scripted_engine: Make) -> None:
    vocab = ["a", "b", ".", "ab", "c"]
    engine, prompt = scripted_engine(vocab, rank=["b", "ab", "a", "c", ".", "<eos>"])
    options = {"temperature": 0, "max_tokens": 6}
    b = vocab.index("b")
    # Where the text is not complete it cannot come: another token spells the same text.
    out = engine.generate(prompt, regex="(?:ab|cc)c*", stop_token_ids=[b], **options)
    assert (out.text, out.tokens[0], out.finish_reason) == ("ab", vocab.index("ab"), "constraint")
    # Nor where it would be forced, as the tokenizer spells the text.
    assert engine.generate(prompt, regex="cabc", **options).tokens == tuple(map(vocab.index, ("c", "ab", "c")))
    out = engine.generate(prompt, regex="cabc", stop_token_ids=[vocab.index("ab")], **options)
    assert (out.text, out.tokens) == ("cabc", tuple(map(vocab.index, "cabc")))
    # Where it is complete, it ends the text and is none of it, also where it could go on by it.
    out = engine.generate(prompt, regex="ab*", stop_token_ids=[b], **options)
    assert (out.text, out.finish_reason) == ("ab", "constraint")
    assert engine.generate(prompt, regex="ab*", **options).text == "abbbbbb"


@pytest.mark.parametrize("constraint", [{"regex": "abc"}, {"regex": "[a-c]{2}[.][.]"}, {"choices": ["abc", "ab."]}])
def test_a_stop_token_that_the_constraint_needs_is_named(scripted_engine: Make, constraint: dict[str, Any]) -> None:
    vocab = ["a", "b", ".", "c"]
    engine, prompt = scripted_engine(vocab, rank=["a", "b", ".", "c"])
    needed = [2, 3] if "choices" in constraint else [2] if "[.]" in constraint["regex"] else [1]
    with pytest.raises(ConstraintError) as caught:
        engine.generate(prompt, stop_token_ids=needed, temperature=0, max_tokens=9, **constraint)
    found = re.search(r"a stop token after '(a|aa|ab)': (.*)", caught.value.message)
    assert found is not None and [int(token) for token in found[2].split(",")] == needed
    assert "stop_token_ids" in caught.value.hint


def test_what_no_token_spells_is_still_said_as_that(scripted_engine: Make) -> None:
    engine, prompt = scripted_engine(["a", "c"], rank=["a", "c"])
    with pytest.raises(ConstraintError, match="cannot spell"):
        engine.generate(prompt, regex="ab", stop_token_ids=[1], max_tokens=9)
