r"""What a pattern says of a whole text, without its assertions.

`^ $ \A \Z` at the ends say nothing of a whole text. A look-ahead or `\b` at the start, and `\b` at the end, speak of
the whole text too, and become conditions beside the body: `(?=A)B` is "B, and A with anything after it". A group that
begins or ends with such a thing is multiplied out: `(^a|b)c` is `^ac|bc`. A look-ahead behind a fixed number of
characters is a condition as well. What then remains inside is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from palmette.arguments import pattern as check
from palmette.errors import ConstraintError
from palmette.runtime.constraints.charset import ALL, NEWLINE, CharSet, Reading, intersection, shorthand, union
from palmette.runtime.constraints.regex_syntax import (
    Alt,
    Assertion,
    Atomic,
    Chars,
    Node,
    Repeat,
    Seq,
    parse,
    refused,
)

_MOST_BRANCHES = 1000

ANYTHING = Repeat(Chars(ALL), 0, None, "", 0)


@dataclass(frozen=True, slots=True)
class Condition:
    """The whole text is (holds) or is not (not holds) in `language`."""

    language: Language
    holds: bool


@dataclass(frozen=True, slots=True)
class Branch:
    """The texts of `body` that meet all the conditions. `body` holds no assertions and no atomic parts."""

    body: Node
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Language:
    """The union of the branches."""

    branches: tuple[Branch, ...]
    # Languages are keys of caches, and the tree of one can be large: it is hashed once.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.branches))

    def __hash__(self) -> int:
        return self._hash


def read_regex(pattern: str) -> Language:
    """The texts that `re.fullmatch(pattern, text, re.ASCII)` takes. ConstraintError at once when it is no pattern, or
    not one that can be enforced."""
    return _read(pattern, Reading.ASCII, "whole")


def read_search(pattern: str, reading: Reading, *, conditions: bool = False) -> Language:
    """The texts in which the pattern is found, as JSON Schema asks; `$` is the very end. conditions: whether
    look-aheads and word boundaries may become conditions; they are refused otherwise."""
    return _read(pattern, reading, "find" if conditions else "search")


def read_stop(pattern: str) -> Language:
    """The texts that the pattern matches, wherever one begins in a text that is still being written: nothing in it may
    speak of what stands before or behind the match, or match where there is no text."""
    check(pattern)
    try:
        node = parse(pattern, Reading.ASCII)
        if (found := _first_assertion(node)) is not None:
            raise ConstraintError(
                "an anchor, look-ahead or word boundary has no meaning in a text that is still being written",
                pointer=f"@{found.at}",
                hint="leave it out, or say what stands there as a part of the pattern",
            )
        body = _settle(node, ())
    except RecursionError:
        raise ConstraintError("the regex is nested too deeply", hint="use fewer groups inside groups") from None
    if nullable(body):
        raise ConstraintError(
            "the pattern matches the empty text, which would end every text at once",
            pointer="@0",
            hint="write it so that it needs at least one character, for instance with + instead of *",
        )
    if _never(body):
        raise ConstraintError("no text matches the regex", pointer="@0", hint="check its empty classes")
    return Language((Branch(body),))


def _read(pattern: str, reading: Reading, mode: str) -> Language:
    check(pattern)
    try:
        language = _language(parse(pattern, reading), mode)
    except RecursionError:
        raise ConstraintError("the regex is nested too deeply", hint="use fewer groups inside groups") from None
    if all(_never(branch.body) for branch in language.branches):
        raise ConstraintError("no text matches the regex", hint="check its anchors and empty classes")
    return language


def _language(node: Node, mode: str) -> Language:
    """mode: "whole", "search", "find" (the same, with conditions), or "ahead" for the body of a look-ahead, which
    matches at the start of the text."""
    branches: list[Branch] = []
    todo: list[list[Node]] = [[node]]
    while todo:
        items = _splice(todo.pop())
        split = _multiply_out(items)
        if split is None:
            branches.append(_branch(items, mode))
        else:
            todo += reversed(split)
        if len(branches) + len(todo) > _MOST_BRANCHES:
            raise ConstraintError("the regex has too many anchors inside alternatives", hint="anchor the whole pattern")
    return Language(tuple(branches))


def _splice(items: Sequence[Node]) -> list[Node]:
    out: list[Node] = []
    for item in items:
        out += _splice(item.items) if isinstance(item, Seq) else [item]
    return out


def _multiply_out(items: list[Node]) -> list[list[Node]] | None:
    """The alternatives of the first or last item that has an assertion at the edge, each with the other items."""
    inner = [i for i, item in enumerate(items) if not isinstance(item, Assertion)]
    # Behind a fixed number of characters a look-ahead may stand too, and a group with one is multiplied out.
    fixed = next((k for k, i in enumerate(inner) if _width(items[i]) is None), len(inner))
    for i in dict.fromkeys(inner[: fixed + 1] + inner[-1:]):
        item = items[i]
        if not _asserts(item):
            continue
        if isinstance(item, Alt):
            return [[*items[:i], option, *items[i + 1 :]] for option in item.options]
        if isinstance(item, Repeat) and item.most == 1 and item.mark != "+":
            return [
                [*items[:i], item.body, *items[i + 1 :]],
                *([[*items[:i], *items[i + 1 :]]] if item.least == 0 else []),
            ]
    return None


def _asserts(node: Node) -> bool:
    return _first_assertion(node) is not None


def _first_assertion(node: Node) -> Assertion | None:
    if isinstance(node, Assertion):
        return node
    parts: tuple[Node, ...] = ()
    if isinstance(node, Seq):
        parts = node.items
    elif isinstance(node, Alt):
        parts = node.options
    elif isinstance(node, Repeat | Atomic):
        parts = (node.body,)
    return next((found for part in parts if (found := _first_assertion(part)) is not None), None)


def _branch(items: list[Node], mode: str) -> Branch:
    conditions: list[Condition] = []
    refuse, mode = mode == "search", "search" if mode == "find" else mode
    at_start, end = False, ""
    word = Chars(shorthand("w", Reading.ASCII))
    items = list(items)
    while items and isinstance(first := items[0], Assertion) and first.kind in ("^", "(?=", "(?!", r"\b"):
        # Where only end marks are left, \b and look-aheads would speak of the end: those stay, and are refused.
        if first.kind == "^":
            at_start = True
        elif all(isinstance(item, Assertion) for item in items) and not (
            mode == "search" and all(item.kind.startswith("(?") for item in items if isinstance(item, Assertion))
        ):
            break
        elif mode == "search" and not at_start:
            raise _misplaced(first)
        elif first.kind == r"\b":
            conditions.append(Condition(Language((Branch(Seq((word, ANYTHING))),)), True))
        else:
            assert first.body is not None
            conditions.append(Condition(_language(first.body, "ahead"), first.kind == "(?="))
        del items[0]
    _inner_looks(items, conditions, relative=mode != "search" or at_start)
    while items and isinstance(last := items[-1], Assertion) and last.kind in ("$", r"\Z", r"\b"):
        if last.kind == r"\b":
            if (not end and mode != "whole") or all(isinstance(item, Assertion) for item in items):
                raise _misplaced(last)
            conditions.append(Condition(Language((Branch(Seq((ANYTHING, word))),)), True))
        else:
            end = r"\Z" if r"\Z" in (end, last.kind) else "$"
        items.pop()
    for item in items:
        if (found := _first_assertion(item)) is not None:
            raise _misplaced(found)
    body = _settle(Seq(tuple(items)), ())
    if refuse and conditions:
        raise ConstraintError(
            "a look-ahead or word boundary in a pattern that is searched for cannot be enforced",
            hint="leave it out, or use a regex constraint",
        )
    if mode == "search" and not at_start:
        body = Seq((ANYTHING, *_shortened(body, 0)))
    if mode != "whole" and not end:
        body = Seq((*_shortened(body, -1), ANYTHING))
    if mode == "ahead" and end == "$":
        body = Seq((body, Repeat(Chars(NEWLINE), 0, 1, "", 0)))
    return Branch(body, tuple(conditions))


def _shortened(body: Node, edge: int) -> list[Node]:
    """The items of `body`, with the repeat at the edge (0: the first, -1: the last) as short as it may be: anything
    stands beyond it, which takes in the rest."""
    items = _splice([body])
    while items and isinstance(item := items[edge], Repeat):
        if item.least:
            items[edge] = item.body if item.least == 1 else Repeat(item.body, item.least, item.least, "", item.at)
            break
        del items[edge]
    return items


def _inner_looks(items: list[Node], conditions: list[Condition], *, relative: bool) -> None:
    """Takes the look-aheads that stand behind a fixed number of characters out of `items`. All texts come to such a
    place at the same character, so that what it says of the rest is a condition on the whole text: `..(?=A)B` is
    "`..B`, and `..A` with anything after it". relative: the items begin where the text does."""
    passed, at = 0, 0
    while relative and at < len(items):
        item = items[at]
        if isinstance(item, Assertion) and item.kind in ("(?=", "(?!"):
            assert item.body is not None
            ahead = _behind(passed, _language(item.body, "ahead"))
            conditions.append(Condition(ahead, item.kind == "(?="))
            del items[at]
            continue
        wide = _width(item)
        if wide is None:
            return
        passed, at = passed + wide, at + 1


def _behind(passed: int, language: Language) -> Language:
    """The texts of the language behind any `passed` characters."""
    any_of = Repeat(Chars(ALL), passed, passed, "", 0)
    return Language(
        tuple(
            Branch(Seq((any_of, b.body)), tuple(Condition(_behind(passed, c.language), c.holds) for c in b.conditions))
            for b in language.branches
        )
    )


def _width(node: Node) -> int | None:
    """The number of characters of each of the node's texts, where they all have the same."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Assertion):
        return None
    if isinstance(node, Seq):
        widths = [_width(item) for item in node.items]
        return None if None in widths else sum(w for w in widths if w is not None)
    if isinstance(node, Alt):
        distinct = {_width(option) for option in node.options}
        return distinct.pop() if len(distinct) == 1 else None
    if isinstance(node, Atomic):
        return _width(node.body)
    inner = _width(node.body)
    return inner * node.least if inner is not None and node.least == node.most else None


def _misplaced(assertion: Assertion) -> ConstraintError:
    names = {"^": "an anchor", "$": "an anchor", r"\Z": "an anchor", "(?=": "a look-ahead", "(?!": "a look-ahead"}
    name = names.get(assertion.kind, "a word boundary")
    return refused(f"{name} inside the pattern", assertion.at, "move it to the start or end of the pattern")


def nullable(node: Node) -> bool:
    """Whether the empty text is among the node's."""
    if isinstance(node, Chars):
        return False
    if isinstance(node, Seq):
        return all(map(nullable, node.items))
    if isinstance(node, Alt):
        return any(map(nullable, node.options))
    if isinstance(node, Repeat):
        return node.least == 0 or nullable(node.body)
    assert isinstance(node, Atomic)
    return nullable(node.body)


def _firsts(node: Node) -> CharSet:
    """The characters that a text of the node can begin with."""
    if isinstance(node, Chars):
        return node.chars
    if isinstance(node, Alt):
        return union(*map(_firsts, node.options))
    if isinstance(node, Seq):
        found: list[CharSet] = []
        for item in node.items:
            found.append(_firsts(item))
            if not nullable(item):
                break
        return union(*found)
    assert isinstance(node, Repeat | Atomic)
    return () if isinstance(node, Repeat) and node.most == 0 else _firsts(node.body)


def _settle(node: Node, follow: CharSet) -> Node:
    """The node without possessive and atomic parts, where leaving that out changes nothing; follow: the characters
    that can come after it. A run of one class gives nothing back if what follows cannot begin with that class."""
    if isinstance(node, Atomic):
        body = node.body
        if isinstance(body, Repeat) and isinstance(body.body, Chars) and body.mark != "?":
            return _settle(Repeat(body.body, body.least, body.most, "+", node.at), follow)
        if isinstance(body, Chars) or (isinstance(body, Seq) and all(isinstance(i, Chars) for i in body.items)):
            return body
        raise refused("an atomic group", node.at, "use a plain group if the rest of the pattern allows it")
    if isinstance(node, Repeat):
        if node.mark == "+" and not (isinstance(node.body, Chars) and not intersection(node.body.chars, follow)):
            raise refused("a possessive repeat here", node.at, "leave out the '+' behind the repeat")
        again = union(follow, _firsts(node.body)) if node.most is None or node.most > 1 else follow
        return Repeat(_settle(node.body, again), node.least, node.most, "", node.at)
    if isinstance(node, Alt):
        return Alt(tuple(_settle(option, follow) for option in node.options))
    if isinstance(node, Seq):
        out: list[Node] = []
        for item in reversed(node.items):
            out.append(_settle(item, follow))
            follow = union(_firsts(item), follow) if nullable(item) else _firsts(item)
        return Seq(tuple(reversed(out)))
    return node


def _never(node: Node) -> bool:
    """Whether the node has no text at all."""
    if isinstance(node, Chars):
        return not node.chars
    if isinstance(node, Seq):
        return any(map(_never, node.items))
    if isinstance(node, Alt):
        return all(map(_never, node.options))
    return isinstance(node, Repeat) and node.least > 0 and _never(node.body)
