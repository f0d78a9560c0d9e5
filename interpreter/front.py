"""The caller's side of a strand: appends operations, and knows which of them a reader has to wait for."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from palmette.errors import PalmetteError
from palmette.interpreter import operations as op
from palmette.interpreter.lower import lower
from palmette.interpreter.results import Result, unknown_variable
from palmette.interpreter.strand import Shared, Strand
from palmette.lang.nodes import Expression, Node, RoleBegin, RoleEnd, flatten
from palmette.lang.sampling import Sampling

_log = logging.getLogger("palmette")
_AWAITED = (op.Generate, op.Choose, op.Fork, op.Join)


class Front:
    """Used by the program's thread. Holds its parent, so a branch lives as long as any branch of it does."""

    def __init__(self, shared: Shared, defaults: Sampling, parent: Front | None = None, index: int = 0) -> None:
        self.shared = shared
        self.defaults = defaults
        self.parent = parent
        self.joined = False
        self.forked = False
        above: Strand | None = None if parent is None else parent.strand
        self.strand: Strand = Strand(shared, above, () if above is None else (*above.path, index))
        self.role: str | None = None if parent is None else parent.role
        self.last: op.Operation | None = None
        # Which operation makes a variable; and the last that may make any: the beginning of a branch, or a join.
        self._makers: dict[str, op.Operation] = {}
        self._any: op.Operation | None = None

    # -- appending

    def append(self, expression: Expression) -> None:
        """Appends all of an expression, or nothing where it is wrong."""
        where = op.caller()
        nodes = list(flatten(expression))
        role = self._role_after(nodes)
        lowered = [lower(node, self.defaults, self.shared.backend.capabilities, where) for node in nodes]
        self.role = role
        self.put(*lowered)

    def put(self, *lowered: op.Operation) -> None:
        self._refuse_joined()
        wake = self.shared.sink is not None
        for operation in lowered:
            if isinstance(operation, op.Join):
                self._any = operation
            else:
                name = getattr(operation, "name", None)
                if name is not None:
                    self._makers[name] = operation
            wake = wake or isinstance(operation, _AWAITED)
            self.last = operation
            self.strand.ops.append(operation)
        if wake:
            self.kick()

    def fork(self, size: int) -> list[Front]:
        self._refuse_joined()
        where = op.caller()
        fronts = [Front(self.shared, _of_branch(self.defaults, index), self, index) for index in range(size)]
        for front in fronts:
            front.last = front._any = op.Start(where=where)
            front.strand.ops.append(front.last)
        self.forked = True
        self.put(op.Fork(tuple(front.strand for front in fronts), where=where))
        return fronts

    def join(self, fronts: Iterable[Front]) -> None:
        """Appends the join of `fronts`, which cannot be appended to from then on."""
        branches = list(fronts)
        for front in branches:
            front._refuse_joined()
        arrivals = []
        for front in branches:
            front.joined = True
            assert front.last is not None
            arrivals.append(op.Arrival(front.strand, front.last))
        self.put(op.Join(tuple(arrivals), where=op.caller()))

    def cancel(self) -> None:
        self.shared.thread.post(lambda: _drop(self.strand))

    def kick(self) -> None:
        self.shared.thread.post(self.strand.pump)

    # -- reading

    def maker(self, name: str) -> op.Operation | None:
        """What a reader of variable `name` waits for; None where nothing can make it."""
        return self._makers.get(name) or self._any

    def refuse_failed(self) -> None:
        """Raises the state's error. Each time with the traceback that it began with: it does not grow by re-raising."""
        strand = self.strand
        if strand.error is not None:
            strand.seen = True
            raise strand.error.with_traceback(strand.traceback)

    def variable(self, name: str) -> Any:
        self.refuse_failed()
        variables = self.strand.memory.variables
        if name not in variables:
            raise unknown_variable(name, variables)
        return variables[name]

    def result(self, name: str) -> Result:
        self.variable(name)
        result = self.strand.memory.results[name]
        if result is None:
            raise PalmetteError(
                f"variable {name!r} was not generated, so it has no result", hint="read it by state[name]"
            )
        return result

    # -- checks

    def _role_after(self, nodes: list[Node]) -> str | None:
        role = self.role
        for node in nodes:
            if isinstance(node, RoleBegin):
                if role is not None:
                    raise PalmetteError(
                        f"a {node.role} message begins inside a {role} message",
                        hint=f"end the {role} message first; messages do not nest",
                    )
                role = node.role
            elif isinstance(node, RoleEnd):
                if role != node.role:
                    inside = f"inside a {role} message" if role else "outside of any message"
                    raise PalmetteError(
                        f"the end of a {node.role} message {inside}", hint=f"begin it by {node.role}_begin()"
                    )
                role = None
        return role

    def _refuse_joined(self) -> None:
        if self.joined:
            raise PalmetteError(
                "this branch is joined already; what it did next would be lost",
                hint="append to the parent, or join later",
            )

    def __del__(self) -> None:
        # Anything may be half gone here: at the interpreter's end, or where __init__ failed.
        strand = getattr(self, "strand", None)
        if strand is None:
            return
        if self.parent is not None and not self.joined:
            try:
                self.shared.thread.post(lambda: _drop(strand))
            except RuntimeError:
                return
        if strand.error is not None and not strand.seen:
            _log.warning("program %r failed and nobody looked: %r", self.shared.program, strand.error)


def _drop(strand: Strand) -> None:
    # Set also where it was complete in time, so that a join does not depend on who was faster.
    strand.dropped = True
    strand.cancel(dropped=True)


def _of_branch(defaults: Sampling, index: int) -> Sampling:
    """The defaults of a branch. A run's seed gives each branch one of its own: with the same, branches that say the
    same would also draw the same, and nobody forks for that."""
    if defaults.seed is None:
        return defaults
    digest = hashlib.blake2b(f"{defaults.seed}/{index}".encode(), digest_size=7).digest()
    return replace(defaults, seed=int.from_bytes(digest, "big"))
