"""A fault inside the engine, put in on purpose: everybody is answered, and no slot is lost where it goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from palmette.errors import BackendError
from palmette.runtime.core import EngineCore
from palmette.runtime.engine import Engine
from palmette.runtime.models.tiny import tiny_model

pytestmark = pytest.mark.tiny

PLACES: dict[str, Callable[[EngineCore], tuple[Any, str]]] = {
    "a request's arrival": lambda core: (core.scheduler.policy, "arrived"),
    "the order of the line": lambda core: (core.scheduler.line, "order"),
    "admission": lambda core: (core.scheduler, "_admit"),
    "the slots of a step": lambda core: (core.scheduler, "_give_slots"),
    "the model": lambda core: (core.model, "forward"),
    "the accounts": lambda core: (core.scheduler.policy, "served"),
    "the tree": lambda core: (core.cache, "insert"),
    "what is kept of a request": lambda core: (core.scheduler, "_keep"),
}


@pytest.mark.parametrize("when", [1, 3, 20])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_leaves_nobody_waiting(place: str, when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.from_model(*tiny_model(), kv_tokens=400)
    calls = 0
    with monkeypatch.context() as patch:
        owner, name = PLACES[place](engine._loop._core)
        work = getattr(owner, name)

        def broken(*arguments: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == when:
                raise MemoryError("put in on purpose")
            return work(*arguments, **keywords)

        patch.setattr(owner, name, broken)
        with ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(engine.generate, "p" * 20 + str(number), max_tokens=9, ignore_eos=True, n=1 + number % 2)
                for number in range(8)
            ]
            done, waiting = wait(asked, timeout=60)
            assert not waiting
        errors = [future.exception() for future in done]
        assert all(error is None or isinstance(error, BackendError) for error in errors)
        if engine.is_open:
            assert engine.check_integrity() == []
            engine.flush_cache()
            assert engine.stats()["kv_free"] == 400
    engine.close()
