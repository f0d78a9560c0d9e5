"""Programs on a server of completions beside palmette: what is sent, what comes back, and the table."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rich.console import Console

import palmette as pt
from palmette.benchmarks.peers import programs
from palmette.benchmarks.peers.server import CompletionsBackend
from palmette.benchmarks.subject import load
from palmette.errors import BackendError, CapabilityError

pytestmark = pytest.mark.tiny


@contextmanager
def server(status: int = 200) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Answers each request with as many "x" as it may have tokens. Port, and the bodies that came."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            count = body["max_tokens"]
            choice = {"index": 0, "text": "x" * count, "finish_reason": "length", "token_ids": [120] * count}
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
            said = json.dumps({"choices": [choice], "usage": usage}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        yield httpd.server_address[1], bodies
    finally:
        httpd.shutdown()
        httpd.server_close()


@pt.function
def two(s: pt.State) -> None:
    s += "abc" + pt.gen("first", max_tokens=3, ignore_eos=True, temperature=0) + "-"
    s += pt.gen("second", regex="[0-9]+", max_tokens=2, temperature=0)


def test_a_program_runs_on_a_server() -> None:
    codec = load("tiny").tokenizer
    with server() as (port, bodies):
        state = two.run(backend=CompletionsBackend(port, codec))
        assert state.text() == "abcxxx-xx"
    assert [codec.decode(body["prompt"]) for body in bodies] == ["abc", "abcxxx-"]
    assert bodies[0]["ignore_eos"] is True
    assert bodies[1]["structured_outputs"] == {"regex": "[0-9]+"}


def test_what_the_server_cannot_do_is_told() -> None:
    codec = load("tiny").tokenizer
    with server(503) as (port, _), pytest.raises(BackendError, match="503"):
        two.run(backend=CompletionsBackend(port, codec)).text()

    @pt.function
    def chooses(s: pt.State) -> None:
        s += pt.select("a", ["b", "c"])

    with pytest.raises(CapabilityError):
        chooses.run(backend=CompletionsBackend(1, codec)).text()


def test_rounds_of_both_make_a_table() -> None:
    subject, said = load("tiny"), []
    with server() as (port, bodies):
        peers = {"peer": CompletionsBackend(port, subject.tokenizer)}
        runs = programs.compare(
            ["W9"], subject, peers, settings={"kv_tokens": 16384}, parallel=8, runs=2, told=said.append
        )
    assert [(run.engine, run.round) for run in runs] == [("palmette", 1), ("peer", 1), ("palmette", 2), ("peer", 2)]
    assert len(bodies) == 2 * 20 * 4 and len(said) == 4
    # New texts in each round: no cache has seen them.
    prompts = {tuple(body["prompt"]) for body in bodies}
    assert len(prompts) == len(bodies)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(programs.table(runs))
    assert "W9" in shown.get() and "x (" in shown.get()
