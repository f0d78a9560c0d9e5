"""Stops a build of a copy that lost its symbolic links. Everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent

for name in ("lang", "interpreter", "runtime", "radix_cache", "kernels", "benchmarks"):
    if not (HERE / "src" / "palmette" / name).is_dir():
        raise SystemExit(
            f"src/palmette/{name} is not a folder: this copy of palmette lost its symbolic links (a .zip archive, or "
            "git with core.symlinks=false). Clone it with git where links work, or install the sdist or wheel."
        )

setup()
