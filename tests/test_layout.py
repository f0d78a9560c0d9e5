"""The repository's root holds folders named lang, runtime, kernels ...: they must never be top-level packages, and
importing palmette must stay cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("lang", "interpreter", "runtime", "radix_cache", "kernels", "benchmarks")


def python(*arguments: str, cwd: Path = ROOT, **env: str) -> str:
    """What Python prints, run in the repository's root without any PYTHON* setting of the caller."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not (ROOT / "lang").exists(), reason="an sdist holds the code under src/palmette only")
@pytest.mark.parametrize("name", FOLDERS)
def test_links_point_to_the_root_folders(name):
    link = ROOT / "src" / "palmette" / name
    assert link.resolve() == ROOT / name
    if link.is_symlink():
        assert link.readlink() == Path("..", "..", name)  # relative, so that a clone's links stay in the clone


def test_kernels_is_no_regular_package():
    # With an __init__.py, `kernels` would hide the hub's package of that name when Python runs in the root.
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_transformers_in_the_root_does_not_take_our_kernels(flags):
    code = (
        "import sys, transformers\n"
        "from transformers import LlamaForCausalLM\n"
        "import palmette.kernels\n"
        "ours = 'kernels' in sys.modules and sys.modules['kernels'].__file__\n"
        "print(ours, LlamaForCausalLM.__name__)"
    )
    assert python(*flags, "-c", code).split()[-2:] in (["False", "LlamaForCausalLM"], ["None", "LlamaForCausalLM"])


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_no_top_level_packages(name):
    # With the root off the path (as a console script runs), nothing installed provides these names.
    code = f"from importlib.util import find_spec as f; print(f({name!r}) is None, f('palmette.{name}') is not None)"
    assert python("-P", "-c", code).split()[-2:] == ["True", "True"]


def test_pytest_does_not_put_the_root_on_the_path():
    assert str(ROOT) not in sys.path


def test_import_is_light():
    heavy = ("torch", "transformers", "numpy", "pydantic", "rich")
    code = f"import sys, palmette; print([name for name in {heavy} if name in sys.modules])"
    assert python("-c", code).strip() == "[]"


def test_import_takes_under_a_third_of_a_second():
    code = (
        "import time; start = time.process_time(); import palmette; "
        "print(time.process_time() - start)"  # processor time: other jobs on the machine do not count
    )
    assert min(float(python("-c", code)) for _ in range(3)) < 0.3


def test_help_is_light():
    code = (
        "import sys\n"
        "from palmette.cli import main\n"
        "status = main(['--help'])\n"
        "print(status, [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    assert python("-c", code).splitlines()[-1] == "0 []"
