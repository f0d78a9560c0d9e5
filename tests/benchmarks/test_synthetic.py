"""Synthetic text has the length that was asked for, and is the same every time."""

from __future__ import annotations

from random import Random

import pytest

from palmette.benchmarks.synthetic import Writer
from palmette.interpreter.backends.mock_codec import MockCodec


@pytest.fixture
def writer():
    return Writer(MockCodec())


@pytest.mark.parametrize("tokens", [1, 2, 17, 300])
def test_text_has_at_most_the_tokens_asked_for_and_nearly_so_many(writer, tokens):
    text = writer.text(Random(3), tokens)
    # A made-up word has a few tokens; the first one is written whatever it costs.
    assert max(1, tokens - 6) <= writer.count(text) <= max(tokens, 6)


def test_text_is_a_matter_of_its_seed(writer):
    assert writer.text(Random(1), 50) == Writer(MockCodec()).text(Random(1), 50)
    assert writer.text(Random(1), 50) != writer.text(Random(2), 50)


def test_words_follow_zipfs_law(writer):
    words = writer.text(Random(0), 20_000).lower().replace(".", "").split()
    counts = sorted((words.count(word) for word in set(words)), reverse=True)
    assert counts[0] > 5 * counts[20] > 0
    assert len(counts) > 500


def test_noise_has_no_blanks_and_its_length(writer):
    noise = writer.noise(Random(0), 40)
    assert noise.isalnum()
    assert writer.count(noise) == 40
