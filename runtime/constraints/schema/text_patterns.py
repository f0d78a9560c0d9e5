"""Sets of strings as regexes in Rust's syntax, for the engine that reads those."""

from __future__ import annotations

from functools import lru_cache
from time import monotonic
from typing import NamedTuple

from palmette.runtime.constraints.determinize import TooLarge, characters
from palmette.runtime.constraints.regex_elimination import regex_of
from palmette.runtime.constraints.regex_rust import rust_node, rust_regex
from palmette.runtime.constraints.schema.shapes import Text
from palmette.runtime.constraints.schema.texts import language_of, listed, possible_without

_MAX_STATES = 400  # of an automaton that is to become a regex
_MAX_NODES = 2000  # of the regex
_MAX_LISTED = 100_000  # characters of listed strings
_SECONDS = 0.5


class RustPattern(NamedTuple):
    """The strings that `pattern` matches as a whole (None: all strings), of `least` to `most` characters."""

    pattern: str | None
    least: int
    most: int | None


@lru_cache(maxsize=1024)
def rust_pattern(t: Text) -> RustPattern | None:
    """The whole of `t`, which is not empty. None where a single regex would be too large, or cannot be found within
    the budget."""
    if t.only is not None:
        if not t.only or sum(map(len, t.only)) > _MAX_LISTED:
            return None
        return RustPattern(rust_node(listed(t.only)), 0, None)
    t = possible_without(t)
    if not (t.all_of or t.none_of or t.without):
        return RustPattern(None, t.least, t.most)
    if len(t.all_of) == 1 and not t.none_of and not t.without and (whole := rust_regex(t.all_of[0])) is not None:
        return RustPattern(whole, t.least, t.most)
    try:
        automaton = characters(language_of(t), max_states=_MAX_STATES, deadline=monotonic() + _SECONDS)
    except (TooLarge, ValueError):
        return None
    node = regex_of(automaton, _MAX_NODES)
    return None if node is None else RustPattern(rust_node(node), t.least, t.most)
