"""How many threads a step gets, on made-up times."""

from __future__ import annotations

from palmette.kernels.cpu.crew import Crew


def run(crew: Crew, steps: int, rows: int, *, alone: float, together: float, unit: float = 1e-3) -> tuple[int, float]:
    """How many of the steps one thread did, and how long they all took; a step takes so many units, of seconds."""
    count, total = 0, 0.0
    for _ in range(steps):
        if crew.alone(rows):
            count, seconds = count + 1, alone
        else:
            seconds = together
        total += seconds
        crew.note(rows, seconds * unit)
    return count, total


def test_threads_work_together_where_that_is_quicker() -> None:
    alone, seconds = run(Crew(), 1000, 1, alone=1.6, together=1.0)
    assert 0 < alone < 10
    assert seconds < 1010


def test_one_works_by_itself_where_others_take_the_cores() -> None:
    alone, seconds = run(Crew(), 1000, 1, alone=1.0, together=10.0)
    assert alone > 980
    assert seconds < 1200


def test_it_is_noticed_when_that_changes() -> None:
    crew = Crew()
    run(crew, 3000, 1, alone=1.6, together=1.0)
    busy, _ = run(crew, 2000, 1, alone=1.6, together=10.0)
    assert busy > 900
    quiet, _ = run(crew, 3000, 1, alone=1.6, together=1.0)
    assert quiet < 1500


def test_each_size_of_step_is_looked_at_by_itself() -> None:
    crew = Crew()
    for _ in range(200):
        for rows, alone, together in ((1, 1.0, 3.0), (512, 2.0, 1.0)):
            crew.note(rows, alone if crew.alone(rows) else together)
    assert crew.alone(1)
    assert not crew.alone(512)


def test_of_long_steps_it_is_noticed_within_a_minute_or_so() -> None:
    crew = Crew()
    run(crew, 3000, 512, alone=1.6, together=1.0, unit=1.0)
    busy, _ = run(crew, 80, 512, alone=1.6, together=10.0, unit=1.0)  # of which six make a minute
    assert busy > 60
