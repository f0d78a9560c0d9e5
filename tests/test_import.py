"""`import palmette` is quick, and its face gives what it says."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import palmette


def fresh(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


HEAVY = {"torch", "transformers", "numpy", "pydantic", "asyncio", "greenlet", "tokenizers", "inspect"}


def test_importing_palmette_imports_nothing_heavy_and_is_quick():
    code = (
        "import sys, time; began = time.perf_counter(); before = set(sys.modules); import palmette\n"
        "print(time.perf_counter() - began, *(set(sys.modules) - before))"
    )
    seconds, *modules = min((fresh(code) for _ in range(3)), key=lambda parts: float(parts[0]))
    assert not HEAVY & set(modules)
    assert float(seconds) < 0.3


def test_programs_run_on_the_mock_without_torch_or_pydantic():
    code = """
import sys
import palmette as pt
@pt.function
def ask(s):
    s += pt.user("hi") + pt.assistant(pt.gen("x", type=int))
assert ask.run(backend=pt.testing.MockBackend({"x": "3"})).value("x") == 3
print(*sys.modules)
"""
    assert not {"torch", "transformers", "numpy", "pydantic"} & set(fresh(code))


def test_each_name_of_the_face_exists_and_type_checkers_see_the_same():
    tree = ast.parse(Path(palmette.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            assert alias.asname == alias.name
            seen[alias.name] = statement.module
    assert seen.pop("testing") == "palmette"
    assert seen == palmette._NAMES
    for name, module in palmette._NAMES.items():
        if module != "palmette.runtime.engine":
            assert getattr(palmette, name) is getattr(importlib.import_module(module), name)
    assert set(palmette.__all__) <= set(dir(palmette))


def test_a_misspelt_name_is_an_attribute_error_with_a_suggestion():
    with pytest.raises(AttributeError, match="did you mean 'function'"):
        _ = palmette.funktion
    assert not hasattr(palmette, "__wrapped__")
