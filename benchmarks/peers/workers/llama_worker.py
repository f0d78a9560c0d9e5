"""llama.cpp's server: BINARY GGUF THREADS. Standard library only.

How many slots are best depends on the workload: one for a single stream and behind a shared prefix (slots share nothing
with each other), as many as there are requests where these have nothing in common. So the server starts anew where
the number changes, outside of what is timed.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import monotonic, perf_counter, sleep
from typing import Any

from .texts import LETTERS, Messages, Refused, Text, TextEngine, chat
from .wire import serve

Body = Mapping[str, Any]

# Slots are opened in these numbers, and hold so many tokens each.
_SLOTS = {1: 4096, 8: 2048, 32: 1024, 64: 512}
_START_SECONDS = 120.0


class Llama(TextEngine):
    def __init__(self, binary: str, model: str, threads: int) -> None:
        self._binary, self._model, self._threads = binary, model, threads
        self._server: subprocess.Popen[bytes] | None = None
        self._slots = 0

    def facts(self) -> dict[str, Any]:
        said = subprocess.run([self._binary, "--version"], capture_output=True, text=True)
        version = next((line for line in (said.stderr + said.stdout).splitlines() if "version" in line), "unknown")
        return {"version": version.removeprefix("version: "), "arguments": self._arguments(self._slots)}

    def prepare(self, requests: int, shared: bool) -> None:
        wanted = 1 if shared else min(slots for slots in _SLOTS if slots >= min(requests, max(_SLOTS)))
        if wanted != self._slots:
            self.close()
            self._port = _free_port()
            self._server = subprocess.Popen([*self._arguments(wanted), "--port", str(self._port)], stderr=sys.stderr)
            self._slots = wanted
            self._await()

    def stream(self, prompt: str, new: int) -> list[float]:
        times = []
        for event in self._events({"prompt": prompt, "n_predict": new, "ignore_eos": True}):
            if not event.get("stop"):
                times.append(perf_counter())
        return times

    def complete(self, prompts: Sequence[str], new: int, *, prefix: str = "") -> list[Text]:
        return self._texts([{"prompt": prefix + text, "n_predict": new, "ignore_eos": True} for text in prompts])

    def json(self, talks: Sequence[Messages], schemas: Sequence[Mapping[str, Any]], limit: int) -> list[Text]:
        return self._texts(
            [
                {"prompt": chat(talk), "n_predict": limit, "json_schema": schema}
                for talk, schema in zip(talks, schemas, strict=True)
            ]
        )

    def letters(self, prefix: str, questions: Sequence[str]) -> list[int]:
        answers = self._ask([{"prompt": prefix + q, "n_predict": 1, "n_probs": 50} for q in questions])
        return [_best_letter(answer["completion_probabilities"][0]["top_logprobs"]) for answer in answers]

    def options(self, prefix: str, questions: Sequence[str], options: Sequence[Sequence[str]]) -> list[int]:
        """Each option is forced by a grammar; its log-probability is the sum of its tokens'."""
        bodies = [
            {"prompt": prefix + q, "n_predict": 24, "n_probs": 1, "grammar": "root ::= " + json.dumps(text)}
            for q, texts in zip(questions, options, strict=True)
            for text in texts
        ]
        answers = iter(self._ask(bodies))
        chosen = []
        for texts in options:
            sums = [_total(next(answers)["completion_probabilities"]) for _ in texts]
            chosen.append(max(range(len(texts)), key=sums.__getitem__))
        return chosen

    def close(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(20)
            self._server, self._slots = None, 0

    def _arguments(self, slots: int) -> list[str]:
        words = [self._binary, "-m", self._model, "--host", "127.0.0.1", "-fa", "on", "--no-ui", "--offline"]
        words += ["-t", str(self._threads), "-tb", str(self._threads), "-np", str(slots)]
        return [*words, "-c", str(slots * _SLOTS[slots]), "--no-kv-unified", "-lv", "1"]

    def _await(self) -> None:
        end = monotonic() + _START_SECONDS
        while monotonic() < end:
            assert self._server is not None
            if self._server.poll() is not None:
                raise RuntimeError(f"llama-server ended with status {self._server.returncode}")
            try:
                if self._get("/health") == 200:
                    return
            except OSError:
                pass
            sleep(0.02)
        raise RuntimeError(f"llama-server gave no answer within {_START_SECONDS:g} s")

    def _get(self, path: str) -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status

    def _open(self, connection: http.client.HTTPConnection, body: Body) -> http.client.HTTPResponse:
        text = json.dumps({"temperature": 0, "cache_prompt": True, **body})
        connection.request("POST", "/completion", text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"llama-server: {response.status} {response.read(500).decode(errors='replace')}")
        return response

    def _post(self, body: Body) -> Any:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port)) as connection:
            return json.loads(self._open(connection, body).read())

    def _events(self, body: Body) -> Iterator[Any]:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port)) as connection:
            response = self._open(connection, {**body, "stream": True})
            while line := response.readline():
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])

    def _ask(self, bodies: Sequence[Body]) -> list[Any]:
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(self._post, bodies))

    def _texts(self, bodies: Sequence[Body]) -> list[Text]:
        return [Text(answer["content"], answer["tokens_predicted"]) for answer in self._ask(bodies)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _best_letter(top: Sequence[Mapping[str, Any]]) -> int:
    told = {each["token"]: each["logprob"] for each in top}
    if not any(letter in told for letter in LETTERS):
        raise Refused("no letter is among the 50 likeliest tokens")
    return max(range(len(LETTERS)), key=lambda i: told.get(LETTERS[i], float("-inf")))


def _total(tokens: Sequence[Mapping[str, Any]]) -> float:
    return sum(float(each["logprob"]) for each in tokens if each["token"])


if __name__ == "__main__":
    serve(lambda: Llama(sys.argv[1], sys.argv[2], int(sys.argv[3])))
