"""The backend that programs run on where `run` names none."""

from __future__ import annotations

from palmette.errors import PalmetteError
from palmette.runtime.protocol import Backend

_default: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """Sets the default backend of this process; None takes it away."""
    global _default
    _default = None if backend is None else checked(backend)


def backend_for(given: object) -> Backend:
    """`given` where there is one, else the default. PalmetteError where there is neither."""
    if given is not None:
        return checked(given)
    if _default is None:
        raise PalmetteError(
            "no backend to run on",
            hint="pass one: program.run(..., backend=engine), or set one for all: pt.set_default_backend(engine), "
            'with engine = pt.Engine("smollm2-135m")',
        )
    return _default


def checked(backend: object) -> Backend:
    missing = [name for name in ("capabilities", "codec", "submit", "score_async") if not hasattr(type(backend), name)]
    if missing:
        raise TypeError(f"{backend!r} is no backend: it has no {', '.join(missing)}; give an Engine or a MockBackend")
    return backend  # type: ignore[return-value]
