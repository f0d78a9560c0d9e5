"""The evaluator beside the tests, which are no package."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palmette.runtime.constraints.schema import texts
from palmette.runtime.constraints.schema.shapes import Normal

Evaluate = Callable[[Normal, Any], bool]


@pytest.fixture(scope="session")
def evaluate() -> Evaluate:
    """Whether a normal form takes a whole value, by the evaluator of evaluate.py."""
    spec = importlib.util.spec_from_file_location("schema_evaluate", Path(__file__).with_name("evaluate.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda normal, value: module.evaluate(normal, value, texts.contains)
