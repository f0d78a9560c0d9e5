"""Stops a build of a copy that lost its symbolic links, and compiles the C++ kernels. The rest is in pyproject.toml.

The kernels (kernels/cpu/native) are one shared library without Python in it: one object for each instruction set, all
of them linked, chosen at run time. Where there is no compiler the install goes on without the library.

For work on them: `python setup.py build_ext --inplace` builds where an editable install looks; with
`--build-lib DIR --build-temp DIR` it builds elsewhere, and PALMETTE_CPU_LIBRARY names the library to load.
PALMETTE_CPU_LEVELS="avx2" leaves out all levels but those named and the portable one, for a quicker build;
PALMETTE_CXXFLAGS are further flags for the compiler, CXX is another one.
"""

import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

HERE = Path(__file__).resolve().parent

for name in ("lang", "interpreter", "runtime", "radix_cache", "kernels", "benchmarks"):
    if not (HERE / "src" / "palmette" / name).is_dir():
        raise SystemExit(
            f"src/palmette/{name} is not a folder: this copy of palmette lost its symbolic links (a .zip archive, or "
            "git with core.symlinks=false). Clone it with git where links work, or install the sdist or wheel."
        )

NATIVE = Path("src", "palmette", "kernels", "cpu", "native")
# No contraction: which products are fused with their sums must not depend on how a loop was unrolled.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra"]
# With -ftree-ter GCC puts off the sums of a kernel until their terms have filled all registers.
GCC_FLAGS = ["-fno-tree-ter"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
# GCC 12 takes the undefined vectors of its own headers for a mistake of ours (its bug 105593).
AVX512 = [*AVX2, "-mprefer-vector-width=512", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
AVX512 += [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni")]
X86_LEVELS = {"avx2": AVX2, "avx512": AVX512, "avx512bf16": [*AVX512, "-mavx512bf16"]}
ARM_LEVELS = {"dotprod": ["-march=armv8.2-a+dotprod"]}


def levels(machine: str) -> dict[str, list[str]]:
    """The instruction sets above the plain one that a machine may have and that are wanted, each with its flags."""
    machines = {"x86_64": X86_LEVELS, "amd64": X86_LEVELS, "aarch64": ARM_LEVELS, "arm64": ARM_LEVELS}
    wanted = os.environ.get("PALMETTE_CPU_LEVELS")
    every = machines.get(machine.lower(), {})
    return {name: flags for name, flags in every.items() if wanted is None or name in wanted.replace(",", " ").split()}


class BuildNative(build_ext):
    """Compiles the sources of an extension with the flags of their level, two at a time, and links them."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"  # no Python inside: not named after one

    def build_extension(self, ext: Extension) -> None:
        if not self.inplace:  # an older one must not go into the wheel if this build fails
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        compiler = next((c for c in (os.environ.get("CXX"), "c++", "g++", "clang++") if c and shutil.which(c)), None)
        if compiler is None:
            raise CompileError("no C++ compiler found: palmette runs on its slower reference kernels")
        out, temp = Path(self.get_ext_fullpath(ext.name)), Path(self.build_temp, "palmette_cpu")
        temp.mkdir(parents=True, exist_ok=True)
        built = {name: f for name, f in levels(platform.machine()).items() if self.accepts(compiler, f)}
        flags = [
            *FLAGS,
            *(f for f in GCC_FLAGS if self.accepts(compiler, [f, "-Werror"])),
            *os.environ.get("PALMETTE_CXXFLAGS", "").split(),
        ]
        sources = {"main": [f"-DPALMETTE_HAVE_{name.upper()}" for name in built], "team": []}
        sources |= {"ops": [], "plan": [], "tape": [], "level_portable": []}
        sources |= {f"level_{name}": level for name, level in built.items()}
        newest = max(path.stat().st_mtime for path in [*NATIVE.iterdir(), Path(__file__)])

        def build(name: str) -> Path:
            target = temp / f"{name}.o"
            if self.force or not target.exists() or target.stat().st_mtime < newest:
                self.call(compiler, *flags, *sources[name], "-c", NATIVE / f"{name}.cpp", "-o", target)
            return target

        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(build, sources))
        out.parent.mkdir(parents=True, exist_ok=True)
        # Into a new file: a library that some process has loaded must not change under it.
        fresh = out.with_name(f".{out.name}.new")
        self.call(compiler, "-shared", "-pthread", *objects, "-o", fresh)
        fresh.replace(out)

    def call(self, *command: object) -> None:
        words = [str(word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.stderr:
            self.warn(done.stderr)
        if done.returncode:
            raise CompileError(f"{' '.join(words)} failed")

    def accepts(self, compiler: str, flags: list[str]) -> bool:
        """Whether the compiler knows these flags."""
        words = [compiler, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
        return subprocess.run(words, capture_output=True).returncode == 0


class AnyPython(bdist_wheel):
    """One wheel a platform: the library is loaded with ctypes, so any Python 3 will do."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension("palmette.kernels.cpu._native", sorted(map(str, NATIVE.glob("*.cpp"))), optional=True, language="c++")
    ],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": AnyPython},
)
