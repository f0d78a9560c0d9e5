"""Engines that tests share. A tiny random model for the engine's behaviour, the real small model for the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from palmette.runtime.engine import Engine

# Two cores and often two test workers: more threads than cores only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def tiny_engine() -> Iterator[Callable[..., Engine]]:
    """A maker of engines around the tiny random model; keywords are settings of Engine, `seed_model` the weights'."""
    from palmette.runtime.engine import Engine
    from palmette.runtime.models.tiny import tiny_model

    made: list[Engine] = []

    def make(*, seed_model: int = 0, model: dict[str, Any] | None = None, **settings: Any) -> Engine:
        parts = tiny_model(seed_model, chat_template=CHATML, **(model or {}))
        engine = Engine.from_model(*parts, **{"kv_tokens": 4096, **settings})
        made.append(engine)
        return engine

    yield make
    for engine in made:
        faults = engine.check_integrity() if engine.is_open else []
        engine.close()
        assert faults == []


@pytest.fixture(scope="session")
def real_engine() -> Iterator[Engine]:
    """SmolLM2-135M-Instruct in fp32."""
    from palmette.runtime.engine import Engine

    with Engine("smollm2-135m", dtype="fp32") as engine:
        yield engine


class ScriptedModel:
    """A model that wants given tokens: `script[i]` first as the i-th new token, then `rank` in its order."""

    max_context = 4096
    sampler = None
    batch_invariant = True
    kv_bytes_per_token = 4

    def __init__(self, width: int, prompt: int, script: list[int], rank: list[int]) -> None:
        self.vocab_width, self.prompt, self.script, self.rank = width, prompt, script, rank

    def new_kv(self, slots: int) -> None:
        return None

    def forward(self, batch: Any, kv: None) -> Any:
        import torch

        logits = torch.zeros(len(batch.out_rows), self.vocab_width)
        for line, row in enumerate(batch.out_rows.tolist()):
            for place, token in enumerate(self.rank):
                logits[line, token] = 20.0 - place
            step = int(batch.positions[row]) + 1 - self.prompt
            if step < len(self.script):
                logits[line, self.script[step]] = 50.0
        return logits


class ListTokenizer:
    """A tokenizer over a list of byte strings (longest match first) with one end token after them."""

    bos_id = None

    def __init__(self, pieces: list[bytes]) -> None:
        from palmette.runtime.constraints.vocabulary import Vocabulary

        self.token_bytes: list[bytes | None] = [*pieces, None]
        self.eos = len(pieces)
        self.eos_ids = frozenset({self.eos})
        self.control = {"<eos>": self.eos}
        self.n_tokens = len(pieces) + 1
        self.vocabulary = Vocabulary(
            self.token_bytes, width=self.n_tokens, end_ids=self.eos_ids, encode=self.encode_bytes
        )

    def encode(self, pieces: Any, *, start: bool = False) -> list[int]:
        text = pieces if isinstance(pieces, str) else "".join(piece.text for piece in pieces)
        ids = self.encode_bytes(text.encode())
        if b"".join(self.token_bytes[i] or b"" for i in ids) != text.encode():
            raise ValueError(f"no token for all of {text!r}")
        return ids

    encode_prompt = encode

    def encode_bytes(self, rest: bytes) -> list[int]:
        """Bytes that no token spells are left out."""
        ids: list[int] = []
        while rest:
            fits = [i for i, piece in enumerate(self.token_bytes) if piece and rest.startswith(piece)]
            if not fits:
                rest = rest[1:]
                continue
            best = max(fits, key=lambda i: len(self.token_bytes[i] or b""))
            ids.append(best)
            rest = rest[len(self.token_bytes[best] or b"") :]
        return ids


@pytest.fixture(scope="session")
def list_tokenizer() -> type[ListTokenizer]:
    """The class, which test files cannot import."""
    return ListTokenizer


@pytest.fixture
def scripted_engine() -> Iterator[Callable[..., tuple[Engine, list[int]]]]:
    """A maker of (engine, prompt ids) over a toy vocabulary of byte strings, with a model that follows a script.

    Script and rank are given as the tokens' own bytes or text, or "<eos>".
    """
    from palmette.runtime.engine import Engine

    made: list[Engine] = []

    def make(
        vocab: list[str | bytes], *, script: list[str | bytes] = (), rank: list[str | bytes] = (), **settings: Any
    ) -> tuple[Engine, list[int]]:
        pieces = [piece.encode() if isinstance(piece, str) else piece for piece in vocab]
        tokenizer = ListTokenizer(pieces)

        def ids(tokens: Any) -> list[int]:
            raw = [token.encode() if isinstance(token, str) else token for token in tokens]
            return [tokenizer.eos if token == b"<eos>" else pieces.index(token) for token in raw]

        model = ScriptedModel(tokenizer.n_tokens, 1, ids(script), ids(rank))
        engine = Engine.from_model(model, tokenizer, **{"kv_tokens": 512, **settings})  # type: ignore[arg-type]
        made.append(engine)
        return engine, [0]

    yield make
    for engine in made:
        faults = engine.check_integrity()
        engine.close()
        assert faults == []
