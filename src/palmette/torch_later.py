"""torch, imported when something of it is first used: `from palmette.torch_later import torch`.

Its import takes longer than all else that happens before a first token, and 190 MB. The C++ kernels need none of it: a
model that they run lives in numpy arrays, and torch comes in with what only torch does (models in folders, penalties,
log-probabilities, the reference kernels).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch as torch

P = ParamSpec("P")
R = TypeVar("R")
Array: TypeAlias = "torch.Tensor | np.ndarray[Any, Any]"
"""Numbers in memory: what the C++ kernels give and take is numpy's."""


class _Later:
    """Stands for torch until one of its names is asked for. threads: what it is to work with from then on, where it
    has not been told yet."""

    threads: int | None = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module(), name)
        # Found at once the next time.
        setattr(self, name, value)
        return value

    def _module(self) -> Any:
        """torch itself, told of the threads whoever imported it."""
        module = import_module("torch")
        if self.threads is not None:
            count, self.threads = self.threads, None
            module.set_num_threads(count)
        return module


_later = _Later()
if not TYPE_CHECKING:
    torch = _later


def set_threads(count: int) -> None:
    """With how many threads torch works, and whatever asks for `thread_count`: in the whole process, from now on."""
    _later.threads = count
    if "torch" in sys.modules:
        _later._module()


def thread_count() -> int:
    """What torch has, or would have if it were imported."""
    if "torch" in sys.modules:
        return int(_later._module().get_num_threads())
    if _later.threads is not None:
        return _later.threads
    with suppress(ValueError):
        return max(1, int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0]))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_tensor(value: Any) -> bool:
    """Whether it is one of torch's; imports nothing, since where there is one torch has been imported."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)


def as_numpy(values: Array) -> np.ndarray[Any, Any]:
    """The same numbers as an array, which shares a tensor's memory where that is on the CPU."""
    return values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()


def inference(function: Callable[P, R]) -> Callable[P, R]:
    """torch.inference_mode() as a decorator that imports torch with the first call."""

    @wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode():
            return function(*args, **kwargs)

    return inner


def dtype_name(dtype: torch.dtype | str) -> str:
    """float32 for torch.float32, and for "float32" itself."""
    return str(dtype).removeprefix("torch.")
