"""Wheel, sdist and editable install: built and installed as a user would, without the network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("lang", "interpreter", "runtime", "radix_cache", "kernels", "benchmarks")
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
SITE = sysconfig.get_path("purelib")

pytestmark = pytest.mark.skipif(not (ROOT / "lang").exists(), reason="an sdist holds the code under src/palmette only")


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    # All instruction sets take minutes to compile, and were when this environment was made.
    clean["PALMETTE_CPU_LEVELS"] = ""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**clean, **env}, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the working tree, links kept, without what is never committed."""
    there = tmp_path_factory.mktemp("checkout") / "palmette"
    junk = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, there, symlinks=True, ignore=shutil.ignore_patterns(*junk))
    return there


@pytest.fixture(scope="module")
def sdist(checkout) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", ".", cwd=checkout)
    (archive,) = (checkout / "dist").glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, ".", cwd=checkout)
    (archive,) = out.glob("*.whl")
    return archive


def modules_of_the_tree() -> set[str]:
    """Every .py of the root folders and of the face, by its place in the package."""
    face = ROOT / "src" / "palmette"
    files = {f"palmette/{path.name}" for path in face.glob("*.py")}
    for folder in (*FOLDERS, "cli"):
        top = ROOT / folder if folder in FOLDERS else face / folder
        files |= {f"palmette/{folder}/{path.relative_to(top).as_posix()}" for path in top.rglob("*.py")}
    return files


def test_wheel_holds_the_packages_of_the_root_and_nothing_at_top_level(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"palmette", "palmette-0.1.0.dist-info"}
    assert {name for name in names if name.endswith(".py")} == modules_of_the_tree()
    assert "palmette/py.typed" in names
    # One for all versions of Python: the library has nothing of Python in it.
    assert wheel.name.startswith("palmette-0.1.0-py3-none-") and wheel.name != "palmette-0.1.0-py3-none-any.whl"
    if COMPILER:
        assert "palmette/kernels/cpu/_native.so" in names
    assert not [name for name in names if name.endswith((".h", ".cpp", ".inc"))]
    assert not [name for name in names if "__pycache__" in name]


def test_sdist_builds_the_same_wheel(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
        assert not [member.name for member in archive.getmembers() if member.issym() or member.islnk()]
    (unpacked,) = tmp_path.iterdir()
    for wanted in ("README.md", "LICENSE", "Makefile", "constraints/ci.txt", "examples/tour.py", "docs/index.md"):
        assert (unpacked / wanted).is_file(), wanted
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "out", ".", cwd=unpacked)
    (rebuilt,) = (tmp_path / "out").glob("*.whl")
    ours, theirs = zipfile.ZipFile(wheel), zipfile.ZipFile(rebuilt)
    assert sorted(ours.namelist()) == sorted(theirs.namelist())
    for name in ours.namelist():
        if not name.endswith("RECORD"):
            assert ours.read(name) == theirs.read(name), name


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_install(kind, checkout, wheel, tmp_path):
    # A venv of its own. The dependencies come from this test's environment by PYTHONPATH, where .pth files are not
    # read: the editable palmette installed here is not seen there.
    home = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=tmp_path)
    what = [wheel] if kind == "wheel" else ["--editable", checkout]
    run(
        sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install",
        "--no-index", "--no-deps", "--no-build-isolation", *what,
        cwd=tmp_path, PYTHONPATH=SITE,
    )  # fmt: skip
    code = (
        "import palmette, importlib\n"
        f"for name in {FOLDERS!r}: importlib.import_module('palmette.' + name)\n"
        "print(palmette.__file__)"
    )
    where = checkout / "src" if kind == "editable" else home
    for cwd in (tmp_path, checkout):  # also in the root, where the folders lie under their bare names
        python = home / "bin" / "python"
        assert Path(run(python, "-c", code, cwd=cwd, PYTHONPATH=SITE).strip()).is_relative_to(where)
        assert run(python, "-m", "palmette", "--version", cwd=cwd, PYTHONPATH=SITE).strip() == "palmette 0.1.0"
    assert run(home / "bin" / "palmette", "--version", cwd=checkout, PYTHONPATH=SITE).strip() == "palmette 0.1.0"
    if COMPILER:
        code = "from palmette.kernels.cpu.library import load; print(load().path, *load().levels)"
        path, *levels = run(python, "-c", code, cwd=tmp_path, PYTHONPATH=SITE).split()
        assert Path(path).is_relative_to(where) or Path(path).is_relative_to(checkout)
        assert levels == ["portable"]


def test_without_a_compiler_the_install_goes_on(checkout, tmp_path):
    run(
        sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ".",
        cwd=checkout, CXX="/nowhere/c++", PATH=str(tmp_path),
    )  # fmt: skip
    (archive,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(archive).namelist()
    assert "palmette/kernels/cpu/library.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_a_copy_without_links_is_refused_in_plain_words(tmp_path):
    # What a .zip, or git without symbolic links, leaves: small files that name the target.
    (tmp_path / "src" / "palmette").mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", tmp_path)
    for name in FOLDERS:
        (tmp_path / "src" / "palmette" / name).write_text(f"../../{name}")
    done = subprocess.run([sys.executable, "setup.py", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "lost its symbolic links" in done.stderr
