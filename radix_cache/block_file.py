"""The KV of one block of tokens as a file: its name, its bytes, and how what is wrong with it is seen.

A prefix is cut into blocks of `block` tokens, the last of which may be shorter. A block is addressed by all tokens up
to its end: its key is a hash of the key of the block before it and of its own tokens, and the first one's parent is a
hash of fingerprint and namespace. So equal keys mean equal KV, and no namespace can name another's blocks.

    parent of all   k0 = hash(fingerprint, namespace)
    tokens 0..63    k1 = hash(k0, tokens)     <k0>-<k1>-0.kv1
    tokens 64..99   k2 = hash(k1, tokens)     <k1>-<k2>-64.kv1

A file holds, in little-endian numbers:

    magic, 8 bytes | CRC32 of all that follows | the rest of the header | int32[n] tokens | 0.. to a multiple of 64 |
    uint8[n, bytes_per_token] rows

It is written under a temporary name and renamed, so that nobody sees the half of one; and as a crash of the machine may
still leave the half, or another's bytes, a reader believes nothing that the checksum does not cover.
"""

from __future__ import annotations

import os
import re
import secrets
import struct
import time
import zlib
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

FORMAT = 1
# Bytes of a token id.
INT = 4
_MAGIC = b"palmetKV"
# After the magic: CRC32, format, tokens, position of the first, bytes per token, parent, hash of the fingerprint.
_HEADER = struct.Struct("<8sIIIQQ16s16s")
_CHECKED_FROM = 12
_ALIGN = 64
_NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-(\d{1,12})\.kv(\d+)")
_TEMPORARY = re.compile(r"(\d+)-[0-9a-f]{16}\.tmp")
# A temporary file that was not touched for so long (in seconds) is nobody's, alive or not.
_STALE = 3600


class BadBlock(Exception):
    """A file that is not what its name says: cut short, changed, or never finished."""


class Name(NamedTuple):
    """A block: the key of the one before it, its own, and the position of its first token."""

    parent: bytes
    key: bytes
    start: int

    @property
    def folder(self) -> str:
        """Which of the 256 folders it lies in: with all that may follow the same parent."""
        return folder_of(self.parent)

    @property
    def file(self) -> str:
        return f"{self.parent.hex()}-{self.key.hex()}-{self.start}.kv{FORMAT}"


class Block(NamedTuple):
    """A block that a prefix is cut into: its name, its tokens as little-endian int32, and the position after them."""

    name: Name
    ids: bytes
    end: int

    @property
    def length(self) -> int:
        return self.end - self.name.start


class State(NamedTuple):
    """What tells a file from itself after a change: its number, and when its bytes changed last, in ns."""

    number: int
    written: int


class Kind(NamedTuple):
    """What all blocks of a tier have in common."""

    fingerprint: str
    bytes_per_token: int
    block: int

    @property
    def mark(self) -> bytes:
        """The fingerprint as 16 bytes."""
        return blake2b(self.fingerprint.encode(), digest_size=16).digest()

    def size(self, tokens: int) -> int:
        """Bytes of a file of so many tokens."""
        return rows_from(tokens) + tokens * self.bytes_per_token


def root_key(kind: Kind, namespace: str) -> bytes:
    """The parent of a namespace's first blocks."""
    return blake2b(namespace.encode("utf-8", "surrogatepass"), digest_size=16, key=kind.mark).digest()


def block_key(parent: bytes, ids: bytes) -> bytes:
    """The key of a block of these tokens, as little-endian int32, after `parent`."""
    return blake2b(parent + ids, digest_size=16).digest()


def cut(data: bytes, root: bytes, size: int) -> list[Block]:
    """The blocks of a prefix, of `size` tokens each but the last."""
    blocks: list[Block] = []
    for at in range(0, len(data), size * INT):
        ids = data[at : at + size * INT]
        name = Name(blocks[-1].name.key if blocks else root, b"", at // INT)
        name = name._replace(key=block_key(name.parent, ids))
        blocks.append(Block(name, ids, (at + len(ids)) // INT))
    return blocks


def folder_of(parent: bytes) -> str:
    return f"{parent[0]:02x}"


def parse(file: str, *, any_format: bool = False) -> Name | None:
    """The name that a file's name spells; None for a file that is no block, or one of another format."""
    match = _NAME.fullmatch(file)
    if match is None or not (any_format or match[4] == str(FORMAT)):
        return None
    return Name(bytes.fromhex(match[1]), bytes.fromhex(match[2]), int(match[3]))


def rows_from(tokens: int) -> int:
    """Where in a file of so many tokens the rows begin."""
    return -(-(_HEADER.size + tokens * INT) // _ALIGN) * _ALIGN


def write_block(folder: Path, block: Block, rows: Bytes, kind: Kind) -> int:
    """Store a block with its `rows`, uint8[n, bytes_per_token], whole or not at all; the size of the file. Raises
    OSError, and leaves nothing behind."""
    n, name, ids = block.length, block.name, block.ids
    rest = struct.pack("<IIQQ16s16s", FORMAT, n, name.start, kind.bytes_per_token, name.parent, kind.mark) + ids
    rest += bytes(rows_from(n) - _CHECKED_FROM - len(rest))
    data = np.ascontiguousarray(rows).data.cast("B")
    head = _MAGIC + struct.pack("<I", zlib.crc32(data, zlib.crc32(rest))) + rest
    temporary = folder / f"{os.getpid()}-{secrets.token_hex(8)}.tmp"
    # Not synced to the disk: what a power cut takes is a miss, and the checksum tells.
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
            for part in (memoryview(head), data):
                while part:
                    part = part[file.write(part) :]
        os.replace(temporary, folder / name.file)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return len(head) + len(data)


def read_ids(folder: Path, name: Name, kind: Kind) -> bytes:
    """The tokens of a block. Raises BadBlock where they are not what the name says, OSError where there is no reading.
    Of the rows it says nothing."""
    with open(folder / name.file, "rb", buffering=0) as file:
        return _ids(file.read(_HEADER.size + kind.block * INT), name, kind)


def make_private(folder: Path) -> None:
    """Make a folder and those above it, for this user only: `mkdir` gives its mode to the last one alone."""
    if not folder.exists():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def map_block(folder: Path, name: Name, kind: Kind, trusted: State | None) -> tuple[Bytes, State]:
    """The rows of a block, uint8[n, bytes_per_token], read only and mapped into memory, and the state of its file.

    `trusted`: that state, of the file when it was checked; any other is checked as a whole. Raises BadBlock
    where anything is wrong, and OSError where there is no reading. The rows stay readable when the file is deleted.
    """
    with open(folder / name.file, "rb") as file:
        state = os.fstat(file.fileno())
        head = file.read(_HEADER.size + kind.block * INT)
        n = len(_ids(head, name, kind)) // INT
        if state.st_size != kind.size(n):
            raise BadBlock(f"{state.st_size} bytes for {n} tokens")
        whole: Bytes = np.memmap(file, dtype=np.uint8, mode="r").view(np.ndarray)
    if whole.size != state.st_size:
        raise BadBlock("it changed while it was opened")
    now = State(state.st_ino, state.st_mtime_ns)
    if now != trusted and zlib.crc32(whole[_CHECKED_FROM:].data) != int.from_bytes(head[8:12], "little"):
        raise BadBlock("the checksum is another one")
    return whole[rows_from(n) :].reshape(n, kind.bytes_per_token), now


def _ids(head: bytes, name: Name, kind: Kind) -> bytes:
    """The tokens that follow the header in a file's first bytes."""
    if len(head) < _HEADER.size:
        raise BadBlock("it has no whole header")
    magic, _, form, n, start, width, parent, mark = _HEADER.unpack_from(head)
    ids = head[_HEADER.size : _HEADER.size + n * INT]
    if (magic, form, start, width, parent, mark) != (
        *(_MAGIC, FORMAT, name.start, kind.bytes_per_token),
        *(name.parent, kind.mark),
    ):
        raise BadBlock("the header is another one's")
    if not 0 < n <= kind.block or len(ids) != n * INT or block_key(parent, ids) != name.key:
        raise BadBlock("the tokens are not those of its name")
    return ids


def is_temporary(file: str) -> bool:
    return _TEMPORARY.fullmatch(file) is not None


def remove_if_stale(path: Path) -> None:
    """Remove a temporary file whose writer is gone. (If it only seems so, as across machines, that writer's block is
    lost, and no more.)"""
    match = _TEMPORARY.fullmatch(path.name)
    with suppress(OSError):
        if match and (time.time() - path.stat().st_mtime > _STALE or not _is_running(int(match[1]))):
            path.unlink()


def _is_running(pid: int) -> bool:
    if os.name != "posix":
        return True  # there, asking may end it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
