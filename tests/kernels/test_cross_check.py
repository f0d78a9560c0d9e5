"""The kernels for processors that this one is not: see cross_check.sh."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not shutil.which("g++") or platform.machine() != "x86_64", reason="compiles by g++ on x86-64; see cross_check.sh"
)
def test_wide_vectors_and_where_its_tools_are_aarch64() -> None:
    script = Path(__file__).with_name("cross_check.sh")
    done = subprocess.run(["sh", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wide:" in done.stdout
