"""The driver's end of a worker: see workers/wire.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from palmette.benchmarks.peers import machine
from palmette.errors import BackendError

_END_SECONDS = 20.0


class Worker:
    """A process that has made its first token. start_seconds: until then. facts: what it says of itself.

    BackendError where it ends, or says that it cannot.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self._log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        began = perf_counter()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            self._read()
            self.start_seconds = perf_counter() - began
            self.facts: dict[str, Any] = self._read()["facts"]
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, workload: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The answer: {"figures": ...} or {"refused": why}."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"run": workload, "data": data}) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._broken("it has ended") from None
        return self._read()

    def peak_bytes(self) -> int:
        return machine.peak_bytes(self.pid)

    def forget_peak(self) -> None:
        machine.forget_peak(self.pid)

    def close(self) -> None:
        """Ends the process and all that it has started."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._broken("it has ended")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise self._broken(message["error"])
        return message

    def _broken(self, why: str) -> BackendError:
        return BackendError(f"{self.name}: {why}", hint=f"what it printed is in {self._log}")
