"""fork and join."""

from __future__ import annotations

import gc
import time
import weakref

import pytest

import palmette as pt
from palmette.testing import MockBackend

pytestmark = pytest.mark.timeout(20)


class Broken(Exception):
    pass


def settled(condition, seconds=5.0):
    """Whether `condition` comes true soon; what a cancel does happens on another thread."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def test_branches_are_a_sequence_that_takes_expressions_in_three_ways():
    @pt.function
    def program(s):
        branches = s.fork(3)
        assert len(branches) == 3 and list(branches) == branches[:]
        branches += "all "
        branches += ["a ", "b ", "c "]
        branches += lambda i: f"{i} " + pt.gen("x")
        branches[1] += pt.gen("y")
        with pytest.raises(pt.PalmetteError, match="2 expressions for 3 branches"):
            branches += ["one", "two"]
        with pytest.raises(TypeError):
            branches[0] = s
        branches.join()
        with pytest.raises(pt.PalmetteError, match="joined already"):
            branches.join()
        with pytest.raises(pt.PalmetteError, match="joined already"):
            branches[0] += "late"
        s["texts"] = [branch.text() for branch in branches]

    backend = MockBackend({"y": "Y"}, default=lambda prompt: prompt[-2])
    state = program.run(backend=backend)
    assert state["x"] == ["0", "1", "2"]
    assert state["y"] == [None, "Y", None]
    assert state["texts"] == ["all a 0 0", "all b 1 1Y", "all c 2 2"]


def test_fork_before_any_text_sends_nothing_for_it():
    @pt.function
    def program(s):
        s += ""
        with s.fork(3) as branches:
            for i, b in enumerate(branches):
                b += f"Tip {i}: "
                b += pt.gen("tip", max_tokens=4)

    backend = MockBackend(default="v")
    assert program.run(backend=backend)["tip"] == ["v"] * 3
    assert len(backend.requests) == 3


@pytest.mark.parametrize(("size", "error"), [(0, pt.PalmetteError), (-1, pt.PalmetteError), ("2", TypeError)])
def test_a_fork_into_nothing_is_refused(size, error):
    @pt.function
    def program(s):
        s.fork(size)

    with pytest.raises(error, match="fork"):
        program.run(backend=MockBackend())


def test_position_ids_offset_is_refused():
    @pt.function
    def program(s):
        s.fork(2, position_ids_offset=[0, 1])

    with pytest.raises(TypeError, match="position_ids_offset"):
        program.run(backend=MockBackend())


def test_branches_inherit_text_variables_and_an_open_role():
    @pt.function
    def program(s):
        s += pt.gen("x")
        with s.user():
            s += "so "
            with s.fork(2) as branches:
                branches += lambda i: f"{i}"
                branches += pt.user_end()
                assert [b["x"] for b in branches] == ["v", "v"]
                s["texts"] = [b.messages() for b in branches]

    state = program.run(backend=MockBackend(default="v"))
    assert state["texts"] == [[{"role": "user", "content": f"so {i}"}] for i in range(2)]
    assert state.messages() == [{"role": "user", "content": "so "}]


def test_forks_of_forks_join_level_by_level():
    @pt.function
    def program(s):
        with s.fork(2) as outer:
            for i, branch in enumerate(outer):
                with branch.fork(2) as inner:
                    inner += lambda j, i=i: f"{i}{j}" + pt.gen("x")

    assert program.run(backend=MockBackend(default=lambda p: p))["x"] == [["00", "01"], ["10", "11"]]


def test_the_parent_may_go_on_beside_its_branches():
    @pt.function
    def program(s):
        branches = s.fork(2)
        branches += pt.gen("x")
        s += pt.gen("y")
        branches.join()
        s += f"{s['y']}{s['x']}"

    class Counting(MockBackend):
        most = 0

        async def submit(self, request):
            self.most = max(self.most, self.active + 1)
            async for event in super().submit(request):
                yield event

    backend = Counting({"x": "b", "y": "p"}, delay=0.2)
    assert program.run(backend=backend).text() == "pp['b', 'b']"
    assert backend.most == 3


def test_a_failed_branch_fails_the_join_by_its_error_and_ends_its_siblings():
    error = Broken()
    backend = MockBackend({"x": error, "slow": "v"}, delay=0.0)

    @pt.function
    def program(s):
        with s.fork(3) as branches:
            branches[0] += pt.gen("slow")
            branches[1] += pt.gen("x")
            branches[2] += pt.gen("slow")
        s += "after"

    state = program.run(backend=backend)
    with pytest.raises(Broken) as caught:
        state["slow"]
    assert caught.value is error
    assert len([note for note in error.__notes__ if note.startswith("in program")]) == 1


def test_slow_siblings_of_a_failed_branch_are_cancelled_at_once():
    class Mixed(MockBackend):
        async def submit(self, request):
            self._delay = 0 if request.name == "bad" else 60
            async for event in super().submit(request):
                yield event

    @pt.function
    def program(s):
        with s.fork(2) as branches:
            branches[0] += pt.gen("slow")
            branches[1] += pt.gen("bad")

    backend = Mixed({"bad": Broken("b"), "slow": "v"})
    began = time.perf_counter()
    assert isinstance(program.run(backend=backend).error, Broken)
    assert time.perf_counter() - began < 2
    assert settled(lambda: backend.active == 0)


def test_a_block_that_raises_cancels_its_branches():
    backend = MockBackend(default="v", delay=60)

    @pt.function
    def program(s):
        with pytest.raises(Broken), s.fork(2) as branches:
            branches += pt.gen("x")
            raise Broken
        s += "on"
        return s.text()

    state = program.run(backend=backend)
    assert state.ret_value == "on"
    assert settled(lambda: backend.active == 0)


def test_branches_not_joined_are_cancelled_when_the_program_ends():
    backend = MockBackend({"x": "v", "slow": "v"}, delay=0.02)
    kept = []

    @pt.function
    def program(s):
        done, lost = s.fork(2)
        kept.extend([done, lost])
        done += pt.gen("x")
        done.sync()
        backend._delay = 60
        lost += pt.gen("slow")

    began = time.perf_counter()
    program.run(backend=backend)
    assert time.perf_counter() - began < 5
    assert backend.active == 0
    assert kept[0]["x"] == "v"
    with pytest.raises(pt.Cancelled):
        kept[1]["slow"]


def test_a_branch_that_nobody_holds_any_more_is_cancelled():
    backend = MockBackend(default="v", delay=60)

    @pt.function
    def program(s):
        branches = s.fork(4)
        branches += pt.gen("x")
        assert settled(lambda: backend.active == 4)
        del branches
        gc.collect()
        assert settled(lambda: backend.active == 0)

    program.run(backend=backend)
    assert len(backend.cancelled) == 4


def test_grandchildren_keep_their_parents_going():
    backend = MockBackend(default="v", delay=0.02)

    @pt.function
    def program(s):
        frontier = [s]
        for _ in range(3):
            frontier = [leaf for branch in frontier for leaf in branch.fork(2)]
            for leaf in frontier:
                leaf += pt.gen()
            gc.collect()
        s["texts"] = [leaf.text() for leaf in frontier]

    assert program.run(backend=backend)["texts"] == ["vvv"] * 8
    assert len(backend.requests) == 2 + 4 + 8


def test_a_branch_given_up_is_a_hole_in_the_join():
    @pt.function
    def program(s):
        with s.fork(3) as branches:
            branches += pt.gen("x")
            assert branches[2]["x"] == "v"
            branches[2].cancel()
            branches[0].cancel()

    assert program.run(backend=MockBackend(default="v", delay=0.02))["x"] == [None, "v", None]


def test_ten_thousand_nested_branches_do_not_pile_up():
    strands = weakref.WeakSet()

    @pt.function
    def program(s):
        for i in range(250):
            with s.fork(2) as outer:
                for branch in outer:
                    strands.add(branch._front.strand)
                    with branch.fork(19) as inner:
                        inner += lambda j: f"{j}"
                        for leaf in inner:
                            strands.add(leaf._front.strand)
            s["step"] = i
            s.sync()
            if i % 50 == 49:
                gc.collect()
                assert len(strands) < 5000

    assert program.run(backend=MockBackend())["step"] == 249
    gc.collect()
    assert settled(lambda: gc.collect() >= 0 and len(strands) < 100)


def test_forking_in_a_loop_gathers_the_same_name_again():
    @pt.function
    def program(s, own):
        for turn in range(3):
            with s.fork(2) as branches:
                for branch in branches:
                    branch += f"{turn}"
                    branch += pt.gen("x")
        if own:
            s += pt.gen("x")
            with s.fork(2) as branches:
                branches[0] += pt.gen("x")

    answers = {"x": ["a", "b", "c", "d", "e", "f", "own", "g"]}
    assert program.run(own=False, backend=MockBackend(answers))["x"] == ["e", "f"]
    with pytest.raises(pt.BranchConflict, match="'x'"):
        program.run(own=True, backend=MockBackend(answers)).text()


def test_variables_set_by_hand_in_branches_are_values_after_the_join():
    @pt.function
    def program(s):
        with s.fork(3) as branches:
            branches[0].set_var("n", 1)
            branches[1] += pt.gen("n", type=int)

    state = program.run(backend=MockBackend({"n": "7"}))
    assert state["n"] == [1, "7", None]
    assert state.value("n") == [1, 7, None]


def test_a_runs_seed_gives_each_branch_its_own():
    @pt.function
    def program(s):
        s += pt.gen("before")
        with s.fork(3) as branches:
            for branch in branches:
                branch += pt.gen("x") + pt.gen("fixed", seed=5)

    seeds = []
    for _ in range(2):
        backend = MockBackend(default="v")
        program.run(seed=7, backend=backend).text()
        seeds.append([(r.name, r.params.seed) for r in backend.requests])
    assert sorted(seeds[0]) == sorted(seeds[1])
    assert ("before", 7) in seeds[0] and seeds[0].count(("fixed", 5)) == 3
    assert len({seed for name, seed in seeds[0] if name == "x"}) == 3
