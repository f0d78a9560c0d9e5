"""Perplexity of a fixed text by the same GGUF file, here and in llama.cpp, which counts it with a tool of its own.

The text is passage.txt, the beginning of Carroll's Alice (1865). As that tool does (tools/perplexity of
llama.cpp), it is cut into chunks of 512 tokens, each read for itself, and of each the second half counts, of which all
tokens have at least half a chunk before them:

    chunk  t0 ... t255 t256 | t257 ... t511
                              counted: 255
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from palmette.benchmarks.peers.engines import Place
from palmette.errors import BackendError

if TYPE_CHECKING:
    from palmette.runtime.engine import Engine

CHUNK = 512


class Perplexity(NamedTuple):
    value: float
    chunks: int


class Pair(NamedTuple):
    """form: of the file (engines.MADE, or "stored")."""

    form: str
    ours: Perplexity
    theirs: Perplexity

    @property
    def apart(self) -> float:
        """How much ours is above theirs, in per cent."""
        return 100 * (self.ours.value / self.theirs.value - 1)


def passage() -> str:
    return Path(__file__).with_name("passage.txt").read_text(encoding="utf-8").strip()


def chunks_of(tokens: Sequence[int], bos: int | None, size: int = CHUNK) -> list[list[int]]:
    """The whole chunks. Where texts begin with a BOS, it stands in the place of each chunk's first token."""
    cut = [list(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]
    return [[bos, *chunk[1:]] for chunk in cut] if bos is not None else cut


def perplexity(engine: Engine, text: str, size: int = CHUNK) -> Perplexity:
    """Of the counted tokens. BackendError where the text is shorter than a chunk."""
    tokenizer = engine.tokenizer
    chunks = chunks_of(tokenizer.encode_prompt(text), tokenizer.bos_id if tokenizer.add_bos else None, size)
    if not chunks:
        raise BackendError(f"the text has fewer than {size} tokens", hint="give a longer one")
    total, count = 0.0, 0
    for chunk in chunks:
        output = engine.generate(chunk, max_tokens=0, prompt_logprobs=0, logprobs_start=size // 2 + 1)
        found = [each.logprob for each in output.prompt_logprobs]
        total, count = total - math.fsum(found), count + len(found)
    return Perplexity(math.exp(total / count), len(chunks))


def llama_perplexity(place: Place, file: Path, text: str, threads: int) -> Perplexity:
    """What llama.cpp's tool prints. BackendError where it fails."""
    with TemporaryDirectory() as folder:
        written = Path(folder) / "text.txt"
        written.write_text(text, encoding="utf-8")
        words = [str(place.llama / "llama-perplexity"), "-m", str(file), "-f", str(written), "-c", str(CHUNK)]
        words += ["-b", str(CHUNK), "-t", str(threads), "-tb", str(threads), "--offline"]
        done = subprocess.run(words, capture_output=True, text=True)
    return read(done.stdout + done.stderr)


def read(said: str) -> Perplexity:
    """The figures in what the tool has printed."""
    value = re.search(r"Final estimate: PPL = ([\d.]+)", said)
    chunks = re.search(r"over (\d+) chunks", said)
    if value is None or chunks is None:
        raise BackendError("llama-perplexity gave no figure", hint=f"it said: {said[-500:].strip()}")
    return Perplexity(float(value[1]), int(chunks[1]))


def compared(place: Place, forms: Sequence[str], threads: int) -> list[Pair]:
    """Each form's file by both."""
    from palmette.runtime.engine import Engine

    text, pairs = passage(), []
    for form in forms:
        with Engine(place.weights(form), threads=threads) as engine:
            ours = perplexity(engine, text)
        theirs = llama_perplexity(place, place.weights(form), text, threads)
        if ours.chunks != theirs.chunks:
            raise BackendError(
                f"palmette cuts the text into {ours.chunks} chunks, llama.cpp into {theirs.chunks}",
                hint="the tokenizers differ",
            )
        pairs.append(Pair(form, ours, theirs))
    return pairs


def shown(pairs: Sequence[Pair]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("perplexity", "palmette", "llama.cpp", "apart, %", "tokens counted"):
        table.add_column(heading, justify="left" if heading == "perplexity" else "right", no_wrap=True)
    for pair in pairs:
        counted = pair.ours.chunks * (CHUNK - CHUNK // 2 - 1)
        table.add_row(
            pair.form, f"{pair.ours.value:.4f}", f"{pair.theirs.value:.4f}", f"{pair.apart:+.3f}", str(counted)
        )
    return table
