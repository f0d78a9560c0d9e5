"""A language written in Rust's regex syntax, which llguidance reads: explicit classes only, no flags, no anchors."""

from __future__ import annotations

from palmette.runtime.constraints.charset import CharSet
from palmette.runtime.constraints.regex_language import Language
from palmette.runtime.constraints.regex_syntax import Alt, Chars, Node, Repeat, Seq


def rust_regex(language: Language) -> str | None:
    """None where the language needs conditions, which that syntax cannot say."""
    if any(branch.conditions for branch in language.branches):
        return None
    return _alternatives([branch.body for branch in language.branches])


def rust_node(node: Node) -> str:
    """A tree with no assertions and no atomic parts."""
    return _alternatives([node])


def rust_class(chars: CharSet) -> str:
    """One character of the set."""
    if not chars:
        return r"[^\x{0}-\x{10FFFF}]"
    parts = (rf"\x{{{lo:X}}}" if lo == hi else rf"\x{{{lo:X}}}-\x{{{hi:X}}}" for lo, hi in chars)
    return "[" + "".join(parts) + "]"


def _alternatives(nodes: list[Node]) -> str:
    return "(?:" + "|".join(map(_write, nodes)) + ")"


def _write(node: Node) -> str:
    if isinstance(node, Chars):
        return rust_class(node.chars)
    if isinstance(node, Seq):
        return "".join(map(_write, node.items))
    if isinstance(node, Alt):
        return _alternatives(list(node.options))
    assert isinstance(node, Repeat)
    most = "" if node.most is None else str(node.most)
    return f"(?:{_write(node.body)}){{{node.least},{most}}}"
