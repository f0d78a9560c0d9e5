"""palmette: programs over language models, and the runtime that makes them fast.

    import palmette as pt

    @pt.function
    def qa(s, topic):
        s += pt.user(f"Name a {topic}.")
        s += pt.assistant(pt.gen("answer", max_tokens=16, stop="\\n"))

    state = qa.run(topic="fruit", backend=pt.Engine("smollm2-135m"))

Everything here is imported when it is first used: `import palmette` itself costs next to nothing and no torch.
The code lies in the folders at the repository's root; the links of the same names beside this file make them
palmette.lang and so on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palmette import testing as testing
    from palmette.errors import ArgumentError as ArgumentError
    from palmette.errors import BackendError as BackendError
    from palmette.errors import Cancelled as Cancelled
    from palmette.errors import CapabilityError as CapabilityError
    from palmette.errors import ConstraintError as ConstraintError
    from palmette.errors import ContextLengthError as ContextLengthError
    from palmette.errors import ModelError as ModelError
    from palmette.errors import PalmetteError as PalmetteError
    from palmette.errors import TruncatedError as TruncatedError
    from palmette.interpreter.async_state import AsyncState as AsyncState
    from palmette.interpreter.branches import Branches as Branches
    from palmette.interpreter.defaults import set_default_backend as set_default_backend
    from palmette.interpreter.events import ErrorEvent as ErrorEvent
    from palmette.interpreter.events import TextEvent as TextEvent
    from palmette.interpreter.events import VariableEvent as VariableEvent
    from palmette.interpreter.program import Program as Program
    from palmette.interpreter.program import function as function
    from palmette.interpreter.results import BranchConflict as BranchConflict
    from palmette.interpreter.results import GenResult as GenResult
    from palmette.interpreter.results import SelectResult as SelectResult
    from palmette.interpreter.results import Step as Step
    from palmette.interpreter.results import UnknownVariable as UnknownVariable
    from palmette.interpreter.state import State as State
    from palmette.lang.gen import gen as gen
    from palmette.lang.gen import select as select
    from palmette.lang.roles import assistant as assistant
    from palmette.lang.roles import assistant_begin as assistant_begin
    from palmette.lang.roles import assistant_end as assistant_end
    from palmette.lang.roles import role as role
    from palmette.lang.roles import special as special
    from palmette.lang.roles import system as system
    from palmette.lang.roles import system_begin as system_begin
    from palmette.lang.roles import system_end as system_end
    from palmette.lang.roles import user as user
    from palmette.lang.roles import user_begin as user_begin
    from palmette.lang.roles import user_end as user_end
    from palmette.runtime.engine import Engine as Engine
    from palmette.runtime.protocol import SamplingParams as SamplingParams

__version__ = "0.1.0"

# Where each name comes from; tests check that this table and the imports above say the same.
_NAMES = {
    "AsyncState": "palmette.interpreter.async_state",
    "ArgumentError": "palmette.errors",
    "BackendError": "palmette.errors",
    "BranchConflict": "palmette.interpreter.results",
    "Branches": "palmette.interpreter.branches",
    "Cancelled": "palmette.errors",
    "CapabilityError": "palmette.errors",
    "ConstraintError": "palmette.errors",
    "ContextLengthError": "palmette.errors",
    "Engine": "palmette.runtime.engine",
    "ErrorEvent": "palmette.interpreter.events",
    "GenResult": "palmette.interpreter.results",
    "ModelError": "palmette.errors",
    "PalmetteError": "palmette.errors",
    "Program": "palmette.interpreter.program",
    "SamplingParams": "palmette.runtime.protocol",
    "SelectResult": "palmette.interpreter.results",
    "State": "palmette.interpreter.state",
    "Step": "palmette.interpreter.results",
    "TextEvent": "palmette.interpreter.events",
    "TruncatedError": "palmette.errors",
    "UnknownVariable": "palmette.interpreter.results",
    "VariableEvent": "palmette.interpreter.events",
    "assistant": "palmette.lang.roles",
    "assistant_begin": "palmette.lang.roles",
    "assistant_end": "palmette.lang.roles",
    "function": "palmette.interpreter.program",
    "gen": "palmette.lang.gen",
    "role": "palmette.lang.roles",
    "select": "palmette.lang.gen",
    "set_default_backend": "palmette.interpreter.defaults",
    "special": "palmette.lang.roles",
    "system": "palmette.lang.roles",
    "system_begin": "palmette.lang.roles",
    "system_end": "palmette.lang.roles",
    "user": "palmette.lang.roles",
    "user_begin": "palmette.lang.roles",
    "user_end": "palmette.lang.roles",
}
_MODULES = ("errors", "testing")

__all__ = [*_NAMES, "__version__", "testing"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name]), name)
    elif name in _MODULES:
        value = import_module(f"palmette.{name}")
    else:
        from palmette.errors import suggestion

        if name.startswith("_"):
            raise AttributeError(f"module 'palmette' has no attribute {name!r}")
        raise AttributeError(f"module 'palmette' has no attribute {name!r}; {suggestion(name, _NAMES)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
