"""What is guessed of a text, and what rows of a step cost: neither needs a model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.runtime.lookup import Families, Family, Place, find, guess
from palmette.runtime.pace import Pace

TEXTS = st.lists(st.integers(0, 3), max_size=40)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def guessed(text: list[int], family: Family | None, most: int) -> list[int]:
    found = guess(array(text), family, most)
    return found.tokens if found is not None else []


def slow(text: list[int], tail: list[int]) -> Place | None:
    """The same by its definition: the longest agreement, at most 8 tokens; the last place that has it."""
    best: Place | None = None
    for at in range(1, len(text)):
        depth = 0
        while depth < min(8, at, len(tail)) and text[at - 1 - depth] == tail[-1 - depth]:
            depth += 1
        if depth >= 2 and (best is None or depth >= best.depth):
            best = Place(at, depth)
    return best


@given(TEXTS)
def test_the_longest_run_that_a_text_ends_with_is_found_in_itself(text: list[int]) -> None:
    assert find(array(text), array(text)) == slow(text, text)


@given(TEXTS, TEXTS)
def test_it_is_found_in_another_text(text: list[int], tail: list[int]) -> None:
    assert find(array(text), array(tail)) == slow(text, tail)


@pytest.mark.parametrize(
    ("text", "ahead"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1]),
        # The longest agreement counts before the last one.
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], [3, 8, 1, 2]),
        # A loop goes on.
        ([9, 1, 2, 1, 2], [1, 2, 1, 2]),
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 4], []),
        ([1], []),
        ([], []),
    ],
)
def test_a_text_is_guessed_to_go_on_as_it_did_before(text: list[int], ahead: list[int]) -> None:
    assert guessed(text, None, 4) == ahead


@given(TEXTS, st.integers(1, 12))
def test_a_guess_is_as_long_as_asked_for_or_there_is_none(text: list[int], most: int) -> None:
    assert len(guessed(text, None, most)) in (0, most)


def test_siblings_are_asked_where_they_agree_longer() -> None:
    family = Family()
    family.add(array([1, 2, 3, 4, 5]))
    family.add(array([6, 7]))
    assert guessed([9, 1, 2], family, 4) == [3, 4, 5]
    assert guessed([2, 3, 8, 8, 1, 2, 3], family, 2) == [4, 5]
    assert guessed([2, 3, 8, 8, 2, 3], family, 2) == [8, 8]
    # What ends there is followed by another text, which says nothing.
    assert guessed([9, 4, 5], family, 4) == []
    assert guessed([5, 6], family, 4) == []


def test_a_family_forgets_its_oldest_texts() -> None:
    family = Family()
    for number in range(200):
        family.add(array([number] * 100 + [number + 1000]))
    assert len(family.tokens) <= 8192
    assert guessed([199, 199], family, 1) == [1199]
    assert guessed([0, 0], family, 1) == []
    family.add(np.arange(50_000, dtype=np.int32))
    assert guessed([49_000, 49_001], family, 2) == [49_002, 49_003]


def test_families_are_told_apart_by_their_first_tokens_and_namespace() -> None:
    families = Families()
    prompt = np.arange(40, dtype=np.int32)
    one = families.of(prompt, "")
    assert families.of(np.append(prompt[:32], 7).astype(np.int32), "") is one
    assert families.of(prompt, "other") is not one
    assert families.of(prompt[:31], "") is not one
    for number in range(64):
        families.of(array([number]), "")
    assert families.of(prompt, "") is not one


# -- what is worth it --------------------------------------------------------------------------------------------------


@given(
    fixed=st.floats(1e-4, 1e-1),
    ratio=st.floats(0.02, 1.0),
    rows=st.lists(st.integers(1, 16), min_size=80, max_size=120).filter(lambda rows: len(set(rows)) > 4),
)
def test_a_line_is_learned(fixed: float, ratio: float, rows: list[int]) -> None:
    pace = Pace()
    for count in rows:
        pace.note(count, fixed * (1.0 + ratio * count))
    for count in (min(rows), max(rows)):
        assert pace.fixed + pace.per_row * count == pytest.approx(fixed * (1.0 + ratio * count), rel=0.35)


def test_steps_of_one_size_say_nothing_of_a_row() -> None:
    pace = Pace()
    for _ in range(500):
        pace.note(1, 0.002)
    assert pace.per_row / pace.fixed == pytest.approx(0.15, rel=0.01)
    assert pace.fixed + pace.per_row == pytest.approx(0.002, rel=0.01)


def test_a_step_that_was_held_up_does_not_change_the_line_much() -> None:
    pace = Pace()
    for rows in [1, 2, 4, 8] * 20:
        pace.note(rows, 0.001 + 0.0001 * rows)
    pace.note(8, 10.0)
    assert pace.fixed + 8 * pace.per_row < 0.0025


@given(
    rows=st.integers(1, 16),
    jobs=st.lists(st.tuples(st.floats(0.0, 0.98), st.integers(0, 6)), min_size=1, max_size=3),
    room=st.integers(0, 20),
    per_row=st.floats(0.01, 2.0),
)
def test_no_other_choice_promises_more_tokens_a_second(
    rows: int, jobs: list[tuple[float, int]], room: int, per_row: float
) -> None:
    pace = Pace()
    pace.fixed, pace.per_row = 1.0, per_row

    def rate(counts: tuple[int, ...]) -> float:
        gained = sum(chance**i for (chance, _), count in zip(jobs, counts, strict=True) for i in range(1, count + 1))
        return (rows + gained) / (1.0 + per_row * (rows + sum(counts)))

    counts = tuple(pace.worth(rows, [chance for chance, _ in jobs], [most for _, most in jobs], room))
    assert sum(counts) <= room
    assert all(count <= most for count, (_, most) in zip(counts, jobs, strict=True))
    others = [()]
    for _, most in jobs:
        others = [(*other, count) for other in others for count in range(most + 1)]
    best = max(rate(other) for other in others if sum(other) <= room)
    assert rate(counts) == pytest.approx(best, rel=1e-9)


def test_less_is_drafted_beside_many_rows() -> None:
    pace = Pace()
    alone, beside = (pace.worth(rows, [0.8], [16], 100)[0] for rows in (1, 16))
    assert alone >= 5
    assert beside < alone
    assert pace.worth(1, [0.05], [16], 100) == [0]
