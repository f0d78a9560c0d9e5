"""A language written in Rust's regex syntax, which llguidance reads: explicit classes only, no flags, no anchors."""

from __future__ import annotations

from collections.abc import Callable

from palmette.runtime.constraints.charset import CharSet
from palmette.runtime.constraints.regex_language import Language
from palmette.runtime.constraints.regex_syntax import Alt, Chars, Node, Repeat, Seq


def rust_regex(language: Language) -> str | None:
    """None where the language needs conditions, which that syntax cannot say."""
    if any(branch.conditions for branch in language.branches):
        return None
    return written([branch.body for branch in language.branches], rust_class)


def rust_class(chars: CharSet) -> str:
    """One character of the set."""
    if not chars:
        return r"[^\x{0}-\x{10FFFF}]"
    parts = (rf"\x{{{lo:X}}}" if lo == hi else rf"\x{{{lo:X}}}-\x{{{hi:X}}}" for lo, hi in chars)
    return "[" + "".join(parts) + "]"


def written(nodes: list[Node], one: Callable[[CharSet], str]) -> str:
    """Any of the trees, which have no assertions and no atomic parts; `one` writes one character of a set."""

    def write(node: Node) -> str:
        if isinstance(node, Chars):
            return one(node.chars)
        if isinstance(node, Seq):
            return "".join(map(write, node.items))
        if isinstance(node, Alt):
            return written(list(node.options), one)
        assert isinstance(node, Repeat)
        most = "" if node.most is None else str(node.most)
        return f"(?:{write(node.body)}){{{node.least},{most}}}"

    return "(?:" + "|".join(map(write, nodes)) + ")"
