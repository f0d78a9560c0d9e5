"""What programs said last stays in the tree for their next requests, as long as that keeps nobody else from working.

Between two requests of a program its text is in nobody's use. If all programs get on together, each one's next request
may come to evict what the others are going to go on from, and everything is computed again and again. So the text of a
program's last request is held until its next one is let in or it ends. Requests are let in beside what is held, and
where there is no room for that, holds give way in this order:

1. that of a program which has asked for nothing in many steps: it may be waiting for a person;
2. where one job runs, or none, the shortest. Then few programs at a time are brought to their ends, and the others wait
   with what they have. (Measured on the bench in pools of a half and a quarter: were that only where none runs, it
   would take a third more steps in places and hit no more often; were it also where three run, chats would fall below
   0.9 of the best hit rate.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from palmette.radix_cache.lease import Lease

# After so many steps without a request a program is taken to be busy with something else.
IDLE_STEPS = 32


class _Hold(NamedTuple):
    lease: Lease
    since: int


class Holds:
    """Leases by family (`Job.family`), each with the step since which it is held; in order of that."""

    def __init__(self) -> None:
        self._held: dict[str, _Hold] = {}

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, family: str, lease: Lease, now: int) -> None:
        """Hold a lease, in place of the family's earlier one. `now`: the number of the step."""
        self.release(family)
        self._held[family] = _Hold(lease, now)

    def release(self, family: str) -> bool:
        """What is held for a family is in somebody's use again, or in nobody's; whether there was anything."""
        hold = self._held.pop(family, None)
        if hold is not None:
            hold.lease.release()
        return hold is not None

    def release_idle(self, now: int, asks: Callable[[str], bool]) -> bool:
        """Let go of the longest idle hold whose family does not ask for anything; whether there was one."""
        for family, hold in self._held.items():
            if now - hold.since < IDLE_STEPS:
                return False
            if not asks(family):
                return self.release(family)
        return False

    def release_shortest(self, last: str) -> None:
        """Let go of the shortest hold: the least is lost with it, and its program's turn is the farthest away. That of
        the family `last` only where there is no other."""
        self.release(min(self._held, key=lambda family: (family == last, self._held[family].lease.length)))
