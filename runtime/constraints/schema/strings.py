"""What can still become of a string, where some strings are out of the question."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from palmette.runtime.constraints.schema.text_machine import TextMachine

# What is left, from here on, of the strings that must not be written: their remaining bytes.
Avoided = frozenset[bytes]
NONE: Avoided = frozenset()
# Those that stand in JSON as they are, letters first.
_CHARACTERS = (*range(0x61, 0x7B), *range(0x23, 0x5C), *range(0x5D, 0xD800))


class Literal:
    """The machine of the one string: a state is what is left of it."""

    start = b""

    def step(self, state: bytes, byte: int) -> bytes | None:
        return state[1:] if state and state[0] == byte else None

    def exits(self, state: bytes) -> Iterator[tuple[int, bytes]]:
        if state:
            yield state[0], state[1:]

    def final(self, state: bytes) -> bool:
        return not state

    def shortest(self, state: bytes) -> bytes:
        return state

    def longest(self) -> int:
        return 0  # asked of sets of names only

    def free(self, state: bytes) -> bool:
        return False

    def universal(self, state: bytes) -> bool:
        return False

    def count_at_least(self, n: int) -> bool:
        return n <= 1


LITERAL = Literal()


def step_avoided(avoided: Avoided, byte: int) -> Avoided:
    if not avoided:
        return avoided
    return frozenset(s[1:] for s in avoided if s and s[0] == byte)


@lru_cache(maxsize=1 << 14)
def _rest_of(machine: Any, state: Any) -> bytes:
    return machine.shortest(state)  # type: ignore[no-any-return]


def shortest(machine: TextMachine, state: Any, avoided: Avoided) -> bytes | None:
    """The fewest bytes that complete the string to one that is not avoided; None where there is no such."""
    best = _rest_of(machine, state)  # type: ignore[arg-type]
    if best not in avoided:
        return best
    if machine.universal(state):
        # There is one of one character, if not one of the readable ones.
        return next(c for i in _CHARACTERS if (c := chr(i).encode()) not in avoided)
    # The answer leaves the avoided ones somewhere, or ends as the beginning of one.
    found: bytes | None = None
    level: list[tuple[bytes, Any, Avoided]] = [(b"", state, avoided)]
    while level:
        begun, at, left = level.pop(0)
        if found is not None and len(begun) >= len(found):
            break
        if b"" not in left and machine.final(at):
            found = begun
            break
        for byte, to in machine.exits(at):
            rest = step_avoided(left, byte)
            if rest:
                level.append((begun + bytes([byte]), to, rest))
            else:
                text = begun + bytes([byte]) + _rest_of(machine, to)  # type: ignore[arg-type]
                if found is None or len(text) < len(found):
                    found = text
    return found


def character_between(
    machine: TextMachine, state: Any, avoided: Avoided, first: int, last: int
) -> tuple[int, bytes] | None:
    """A character first <= c <= last that the string can go on with, and the shortest completion behind it. The
    characters' bytes are in the order of their numbers, so whole branches are passed over."""
    lowest, highest = _bytes_of(first), _bytes_of(last)

    def search(begun: bytes, at: Any, left: Avoided) -> tuple[int, bytes] | None:
        if begun and _complete(begun):
            rest = shortest(machine, at, left)
            return None if rest is None else (ord(begun.decode()), rest)
        for byte, to in machine.exits(at):
            text = begun + bytes([byte])
            n = len(text)
            if _size(text[0]) == 0 or not _may_lie(text, lowest, highest, n):
                continue
            found = search(text, to, step_avoided(left, byte))
            if found is not None:
                return found
        return None

    return search(b"", state, avoided)


def _bytes_of(c: int) -> bytes:
    return chr(c).encode("utf-8", "surrogatepass")


def _size(lead: int) -> int:
    return 1 if lead < 0x80 else 0 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _complete(text: bytes) -> bool:
    return len(text) == _size(text[0])


def _may_lie(text: bytes, lowest: bytes, highest: bytes, n: int) -> bool:
    return lowest[:n] <= text <= highest[:n]
