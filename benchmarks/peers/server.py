"""A server that speaks OpenAI's completions, as a backend of programs: what a client without a runtime of its own has.

Prompts go as token ids, whole, with each request: such a server finds by itself what it has seen before.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from palmette.errors import BackendError, CapabilityError
from palmette.runtime.protocol import (
    Capabilities,
    Codec,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Output,
    ScoreRequest,
    ScoreResult,
    Usage,
)

_NAME = "peer"
_PARAMS = frozenset({"max_tokens", "n", "stop", "temperature", "top_p", "seed", "ignore_eos"})
_START_SECONDS = 600.0
# Requests in progress: as many as programs run at once, and their branches.
_CONNECTIONS = 256


class Server:
    """vLLM's server, until `close`. BackendError where it does not come up."""

    def __init__(self, python: Path, model: Path, *, threads: int, environment: Mapping[str, str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        words = [str(python.parent / "vllm"), "serve", str(model), "--served-model-name", _NAME, "--dtype", "bfloat16"]
        words += ["--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", "4096", "--max-num-seqs", "64"]
        words += ["--block-size", "32", "--disable-log-stats", "--disable-uvicorn-access-log"]
        words += ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']
        own = {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                words, env={**environment, **own}, stdout=out, stderr=out, start_new_session=True
            )
        try:
            self._await(log)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """It ends its own children when it is asked to end."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await(self, log: Path) -> None:
        end = monotonic() + _START_SECONDS
        while monotonic() < end:
            if self._process.poll() is not None:
                raise BackendError(f"the server ended with status {self._process.returncode}", hint=f"look into {log}")
            try:
                with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        return
            except (OSError, http.client.HTTPException):
                pass
            sleep(0.2)
        raise BackendError(f"the server did not come up in {_START_SECONDS:g} s", hint=f"look into {log}")


class _Answer(NamedTuple):
    status: int
    body: Any


class CompletionsBackend:
    """Implements `protocol.Backend` for greedy or seeded texts, free or under a regex or a schema."""

    def __init__(self, port: int, codec: Codec) -> None:
        self._codec = codec
        self._capabilities = Capabilities(
            "completions",
            constraints=frozenset({"regex", "json_schema"}),
            score=False,
            logprobs=False,
            stream=False,
            params=_PARAMS,
        )
        self._port = port
        # A thread and a connection for each request in progress, kept: what a client of many threads has.
        self._threads = ThreadPoolExecutor(_CONNECTIONS)
        self._own = threading.local()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def codec(self) -> Codec:
        return self._codec

    def leave(self, family: str) -> None:
        """It holds nothing for a family."""

    async def score_async(self, request: ScoreRequest) -> ScoreResult:
        raise CapabilityError("the server scores no choices", hint="run this workload on palmette alone")

    async def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._threads, self._post, self._body(request))
        except (OSError, http.client.HTTPException, ValueError) as error:
            yield Failed(BackendError(f"the server gave no answer: {error!r}"))
            return
        if answer.status != 200:
            yield Failed(BackendError(f"the server answered {answer.status}: {str(answer.body)[:300]}"))
            return
        choices = answer.body["choices"]
        yield Finished(tuple(self._output(choice, answer.body["usage"], len(choices)) for choice in choices))

    def _post(self, body: Mapping[str, Any]) -> _Answer:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return _Answer(response.status, json.loads(response.read()))
        except BaseException:
            connection.close()
            self._own.connection = None
            raise

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        params = request.params
        body: dict[str, Any] = {
            "model": _NAME,
            "prompt": list(request.tokens),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "ignore_eos": params.ignore_eos,
            "n": params.n,
            "return_token_ids": True,
        }
        if params.stop:
            body["stop"] = list(params.stop)
        if params.seed is not None:
            body["seed"] = params.seed
        if request.constraint is not None:
            kind = {"regex": "regex", "json_schema": "json"}[request.constraint.kind]
            body["structured_outputs"] = {kind: request.constraint.spec}
        return body

    def _output(self, choice: Mapping[str, Any], used: Mapping[str, Any], samples: int) -> Output:
        tokens: Sequence[int] = choice.get("token_ids") or self._codec.encode(choice["text"])
        reason: FinishReason = "length" if choice["finish_reason"] == "length" else "stop"
        usage = Usage(used["prompt_tokens"], 0, used["completion_tokens"] // samples)
        return Output(choice["text"], tuple(tokens), reason, usage, index=choice["index"])
