"""A worker's end of the pipe to the driver: lines of JSON.

First goes out {"ready": true}, when the engine has made its first token, then {"facts": ...}. For each
{"run": workload, "data": ...} that comes in, {"figures": {...}}, {"refused": why} or {"error": text} goes out. The end
of the input ends the worker.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from .texts import Refused, TextEngine
from .timed import run


def serve(start: Callable[[], TextEngine]) -> None:
    # Engines print. What they print goes where errors go, and the pipe stays clean.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: Mapping[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        engine = start()
        engine.prepare(1, False)
        engine.complete(["Hello"], 1)
        send({"ready": True})
        send({"facts": engine.facts()})
    except BaseException as error:
        traceback.print_exc()
        send({"error": f"{type(error).__name__}: {error}"})
        raise SystemExit(1) from None
    try:
        for line in sys.stdin:
            message = json.loads(line)
            try:
                send({"figures": run(engine, message["run"], message["data"])})
            except Refused as reason:
                send({"refused": str(reason)})
            except Exception as error:
                traceback.print_exc()
                send({"error": f"{type(error).__name__}: {error}"})
    finally:
        engine.close()
