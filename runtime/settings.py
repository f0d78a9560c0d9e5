"""An engine's settings, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from palmette.arguments import flag, integer, unknown_keyword
from palmette.errors import ArgumentError, suggestion
from palmette.radix_cache.eviction import POLICIES as EVICTION
from palmette.runtime.policies import POLICIES

# The KV cache takes at most this share of the machine's memory unless the caller says how large it is.
_KV_SHARE = 0.25
_KV_TOKENS = 24_576


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings that any model can run with; see Engine. TypeError or ArgumentError for what makes no sense."""

    kv_tokens: int | None = None
    max_running: int = 64
    max_step_tokens: int = 512
    cache: bool | Literal["flat"] = True
    cache_dir: str | Path | None = None
    cache_dir_bytes: int = 8 << 30
    policy: str = "lpm"
    eviction: str = "lru"
    dedupe: bool = True
    hints: bool = True
    speculation: int | Literal["auto", "off"] = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "max_running", "max_step_tokens", "cache_dir_bytes"):
            value = getattr(self, name)
            if value is not None:
                integer("Engine()", name, value, least=1)
        for name in ("cache", "dedupe", "hints"):
            value = getattr(self, name)
            if (name, value) != ("cache", "flat"):
                flag("Engine()", name, value)
        for name, known in (("policy", POLICIES), ("eviction", EVICTION)):
            value = getattr(self, name)
            if value not in known:
                raise ArgumentError(f"Engine(): there is no {name} {value!r}", hint=suggestion(str(value), known))
        if isinstance(self.speculation, str):
            if self.speculation not in ("auto", "off"):
                hint = suggestion(self.speculation, ("auto", "off")) or "give a number of tokens, to draft so many"
                raise ArgumentError(f"Engine(): there is no speculation {self.speculation!r}", hint=hint)
        else:
            integer("Engine()", "speculation", self.speculation, least=1)
        integer("Engine()", "seed", self.seed, least=-(2**63))
        if self.cache_dir is not None:
            if not isinstance(self.cache_dir, str | Path):
                raise TypeError(f"Engine(): cache_dir= takes a path, not {self.cache_dir!r}")
            if self.cache is not True:
                raise ArgumentError(
                    f"Engine(): cache_dir= needs the prefix cache, which cache={self.cache!r} turns off",
                    hint="leave one of them out",
                )

    def kv_size(self, bytes_per_token: int) -> int:
        """Tokens of the KV cache: what was asked for, or what a quarter of the memory holds, at most 24,576."""
        if self.kv_tokens is not None:
            return self.kv_tokens
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return max(1024, min(_KV_TOKENS, int(memory * _KV_SHARE) // bytes_per_token))


def refuse_unknown(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """TypeError with a suggestion for the first keyword that an engine does not know."""
    for name in given:
        raise unknown_keyword("Engine()", name, [*known, *(field.name for field in fields(EngineSettings))])
