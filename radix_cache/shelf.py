"""The folder of a disk tier: which blocks lie in it, and which of them go when it is full.

    <folder>/<fingerprint>/<2 hex digits of the parent's key>/<block>.kv1

Several processes may share the folder. Each keeps in memory what it knows of it, and looks again where a block is
missed and a folder has changed since.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from palmette.radix_cache.arrays import common_prefix
from palmette.radix_cache.block_file import (
    INT,
    BadBlock,
    Block,
    Bytes,
    Kind,
    Name,
    State,
    folder_of,
    is_temporary,
    map_block,
    parse,
    read_ids,
    remove_if_stale,
)

# A folder that changed less than so long ago, in ns, may change again without a change of its time.
_SETTLED = 1_000_000_000
# A folder of more files than so many is not looked at again for so many times as long as that took.
_MANY = 256
_RESTS = 30


class _Family:
    """The blocks that follow one parent."""

    __slots__ = ("ids", "names", "order")

    def __init__(self) -> None:
        # The tokens of each as bytes; None where only the name is known yet.
        self.ids: dict[Name, bytes | None] = {}
        self.names: dict[bytes, Name] = {}
        # All known tokens, sorted: what has the most in common with others is next to where those would be.
        self.order: list[bytes] = []

    def place(self, name: Name, ids: bytes) -> None:
        if self.ids.get(name) is None:
            self.ids[name] = ids
            self.names[ids] = name
            insort(self.order, ids)

    def drop(self, name: Name) -> None:
        ids = self.ids.pop(name)
        if ids is not None:
            del self.names[ids], self.order[bisect_left(self.order, ids)]


class Shelf:
    """The blocks of one kind that lie in the folder. May be used from several threads."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder = folder / kind.fingerprint
        self.kind = kind
        # How many files were no good; never shrinks.
        self.corrupt = 0
        self._lock = threading.RLock()
        self._names: set[Name] = set()
        self._families: dict[bytes, _Family] = {}
        # The folders as last seen: when they had changed last, and the blocks in them.
        self._changed: dict[str, int] = {}
        self._files: dict[str, set[Name]] = {}
        # When a folder may be looked at again.
        self._due: dict[str, float] = {}
        # The files whose checksums were right, as they were then.
        self._trusted: dict[Name, State] = {}
        # Those that are no good and would not be removed.
        self._bad: set[Name] = set()
        for number in range(256):
            self._look(f"{number:02x}", first=True)

    def __contains__(self, name: Name) -> bool:
        return name in self._names

    def path(self, name: Name) -> Path:
        return self.folder / name.folder / name.file

    def nearest(self, parent: bytes, ids: bytes) -> tuple[Name, int] | None:
        """The block after `parent` that begins with the most of the tokens `ids`, and with how many; None for none."""
        with self._lock:
            self._look(folder_of(parent))
            family = self._families.get(parent)
            if family is None:
                return None
            self._read(family)
            at = bisect_left(family.order, ids)
            near = [(_common(other, ids), other) for other in family.order[max(at - 1, 0) : at + 1]]
            common, other = max(near, default=(0, b""))
            return (family.names[other], common) if common else None

    def beginnings(self, block: Block) -> list[Name]:
        """The blocks that `block` makes superfluous, as it begins with their tokens."""
        with self._lock:
            family, ids = self._families.get(block.name.parent), block.ids
            if family is None:
                return []
            self._read(family)
            return [family.names[ids[:n]] for n in range(INT, len(ids), INT) if ids[:n] in family.names]

    def rows(self, name: Name) -> Bytes:
        """The rows of a block, uint8[n, bytes_per_token], read only and mapped into memory. Raises BadBlock or OSError
        where there are none or they are not right; such a block is not on the shelf any more."""
        try:
            rows, state = map_block(self.path(name).parent, name, self.kind, self._trusted.get(name))
        except BadBlock:
            self.remove(name)
            raise
        except OSError:
            self.drop(name)
            raise
        self._trusted[name] = state
        return rows

    def add(self, block: Block) -> None:
        """Note a block that was just written."""
        with self._lock:
            self._bad.discard(block.name)
            if block.name not in self:
                self._enter(block.name)
            self._families[block.name.parent].place(block.name, block.ids)

    def drop(self, name: Name) -> None:
        """Forget a block that is gone."""
        with self._lock:
            if name not in self:
                return
            self._names.discard(name)
            self._trusted.pop(name, None)
            self._files[name.folder].discard(name)
            family = self._families[name.parent]
            family.drop(name)
            if not family.ids:
                del self._families[name.parent]

    def remove(self, name: Name) -> None:
        """Delete a block that is no good. Where that cannot be, it is ignored from now on."""
        with self._lock:
            self.drop(name)
            self.corrupt += 1
            try:
                self.path(name).unlink(missing_ok=True)
            except OSError:
                self._bad.add(name)

    def touch(self, names: Iterable[Name]) -> None:
        """Note a use of blocks of one prefix: at one time, so that the last of them is the first to go."""
        now = time.time_ns()
        for name in names:
            try:
                before = os.stat(self.path(name))
                os.utime(self.path(name), ns=(now, now))
                trusted = State(before.st_ino, before.st_mtime_ns)
                if self._trusted.get(name) == trusted:
                    # It was ours to change the time.
                    self._trusted[name] = trusted._replace(written=now)
            except FileNotFoundError:
                self.drop(name)
            except OSError:
                return  # a folder that is only to be read

    def _look(self, folder: str, *, first: bool = False) -> None:
        """See what is in a folder, if it may have changed.

        A folder of thousands of blocks (all that follow one system prompt lie in one) takes long to list, and whoever
        writes there changes it all the time. So a share of the time at most goes into looking; until then, what others
        wrote is not known yet, and what they deleted is a miss when it is read.
        """
        begun = time.monotonic()
        if begun < self._due.get(folder, 0.0):
            return
        try:
            changed = os.stat(self.folder / folder).st_mtime_ns
            if self._changed.get(folder) == changed:
                return
            files = os.listdir(self.folder / folder)
        except OSError:
            changed, files = 0, []
        self._changed[folder] = changed if time.time_ns() - changed > _SETTLED else -1
        names = {name for name in map(parse, files) if name and name not in self._bad and name.folder == folder}
        known = self._files.setdefault(folder, set())
        for name in known - names:
            self.drop(name)
        for name in names - known:
            self._enter(name)
        end = time.monotonic()
        self._due[folder] = end + (end - begun) * _RESTS if len(files) > _MANY else 0.0
        if first:
            for file in filter(is_temporary, files):
                remove_if_stale(self.folder / folder / file)

    def _enter(self, name: Name) -> None:
        self._names.add(name)
        self._files.setdefault(name.folder, set()).add(name)
        self._families.setdefault(name.parent, _Family()).ids[name] = None

    def _read(self, family: _Family) -> None:
        """Learn the tokens of blocks of which only the name is known."""
        for name in [name for name, ids in family.ids.items() if ids is None]:
            try:
                family.place(name, read_ids(self.folder / name.folder, name, self.kind))
            except BadBlock:
                self.remove(name)
            except OSError:
                self.drop(name)


class _File(NamedTuple):
    """A block of any fingerprint and format, as it counts against the size. What sorts first goes first: what was used
    least recently, and of one prompt, which was used in one go, the end."""

    used: int
    place: int
    path: str
    size: int


class Room(NamedTuple):
    """Whether there is room, and the paths and sizes of the files that were deleted for it."""

    enough: bool
    gone: list[tuple[str, int]]


class Quota:
    """Keeps all block files under `folder` together within `max_bytes`, least recently used first.

    It counts what it writes itself, and looks what others did after every 1/32 of `max_bytes` of that; then it makes
    room for twice as much. So two processes on one folder stay within the bound, and each more may add 1/32 to it.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = os.fspath(folder)
        self.max_bytes = max_bytes
        self._total = 0
        self._since = max_bytes

    def make_room(self, size: int, keep: Set[str]) -> Room:
        """Room for a file of so many bytes, if it can be had without deleting the paths in `keep`."""
        gone: list[tuple[str, int]] = []
        step = max(size, self.max_bytes // 32)
        if self._total + size > self.max_bytes or self._since + size > self.max_bytes // 32:
            files = sorted(self._files())
            self._total, self._since = sum(file.size for file in files), 0
            for file in files:
                if self._total + 2 * step <= self.max_bytes:
                    break
                if file.path not in keep and _unlink(file.path):
                    self._total -= file.size
                    gone.append((file.path, file.size))
        return Room(self._total + size <= self.max_bytes, gone)

    def note(self, size: int) -> None:
        """Count a file that was written, or with a negative size one that was deleted."""
        self._total += size
        self._since += max(size, 0)

    def _files(self) -> Iterator[_File]:
        """All blocks that lie there. Whatever else is in the folder is not ours."""
        for kind in _entries(self.folder):
            for digits in _entries(kind.path):
                for file in _entries(digits.path):
                    name = parse(file.name, any_format=True)
                    if name and name.folder == digits.name:
                        with suppress(OSError):
                            state = file.stat(follow_symlinks=False)
                            yield _File(state.st_mtime_ns, -name.start, file.path, state.st_size)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _common(a: bytes, b: bytes) -> int:
    """How many tokens two runs begin with in common."""
    return common_prefix(np.frombuffer(a, dtype=np.int32), np.frombuffer(b, dtype=np.int32))
