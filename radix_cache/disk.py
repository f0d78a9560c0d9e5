"""The disk tier: KV that survives the process, under the tokens that it belongs to.

It stores bytes, `bytes_per_token` of them for each token, and knows of no model: what they mean, the `fingerprint` says
(of model, data type and layout), and bytes of one fingerprint are never found under another. How a block of tokens lies
on the disk is in block_file.py; which of them do, and which go when there is no more room, in shelf.py; and how they
get there in disk_writer.py.

It is a cache and no database: whatever is wrong with a file is a miss, and with writing, the end of writing.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from palmette.errors import ArgumentError
from palmette.radix_cache.arrays import Ints, as_ints
from palmette.radix_cache.block_file import INT, BadBlock, Block, Bytes, Kind, Name, block_key, cut, root_key
from palmette.radix_cache.disk_writer import Job, Writer
from palmette.radix_cache.shelf import Quota, Shelf

Rows: TypeAlias = Bytes | Callable[[int, int], Bytes]

_FINGERPRINT = re.compile(r"\w[\w.-]{0,119}", re.ASCII)
# How often a read begins anew, as a block that it needs has gone.
_TRIES = 4


class DiskStats(NamedTuple):
    """Counters since the tier was opened; none ever shrinks. What other processes do on the folder is not in them.

    hit_tokens, read_bytes: what `read` gave back. written_tokens, written_bytes: what became a file.
    evicted_bytes: files deleted to make room, or since a longer one took their place.
    corrupt: files that were not what they should be. dropped_tokens: tokens that were to be written and were not.
    """

    hit_tokens: int = 0
    read_bytes: int = 0
    written_tokens: int = 0
    written_bytes: int = 0
    evicted_bytes: int = 0
    corrupt: int = 0
    dropped_tokens: int = 0


class _Piece(NamedTuple):
    """A stored block, and how many of its tokens a prefix begins with."""

    name: Name
    length: int


class DiskTier:
    """KV on the disk: uint8[n, bytes_per_token] for prefixes of tokens, per namespace.

    folder: where; made if it is not there, for this user only, as prompts are private. Several tiers and processes may
      share it, also with other fingerprints.
    fingerprint: what the bytes depend on but the tokens; a folder is named by it.
    max_bytes: what all files in the folder may come to, those of other fingerprints included; least recently used goes
      first, and of a prefix the end.
    block: tokens a file. A prefix is found to the token, whatever the blocks.
    queue_bytes: what may wait to be written; what comes when that is full is dropped.

    Methods may be called from any thread. None raises for what is on the disk, or for what becomes of it. Where it is
    full or not to be written to, the log says so once, and from then on the tier only reads.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        fingerprint: str,
        bytes_per_token: int,
        max_bytes: int,
        block: int = 64,
        queue_bytes: int = 256 << 20,
    ) -> None:
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise ArgumentError(
                f"{fingerprint!r} cannot name a folder",
                hint="a fingerprint is up to 120 letters, digits, dots and dashes, such as a hash in hexadecimal",
            )
        for what, number in (("bytes_per_token", bytes_per_token), ("max_bytes", max_bytes), ("block", block)):
            if number < 1:
                raise ArgumentError(f"{what} must be at least 1, not {number}")
        # Absolute, so that a change of the working folder is none of this one.
        self.folder = Path(folder).absolute()
        self.kind = Kind(fingerprint, bytes_per_token, block)
        failed: OSError | None = None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / fingerprint).mkdir(mode=0o700, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ArgumentError(f"{self.folder} is no folder", hint="name a folder, or a path that is free") from error
        except OSError as error:
            failed = error
        self._shelf = Shelf(self.folder, self.kind)
        self._writer = Writer(self._shelf, Quota(self.folder, max_bytes), queue_bytes)
        if failed is not None:
            self._writer.stop(failed)
        self._lock = threading.Lock()
        self._hit_tokens = 0

    @property
    def writable(self) -> bool:
        """False once it only reads."""
        return self._writer.writable

    @property
    def stats(self) -> DiskStats:
        """The counters as they stand."""
        hits = self._hit_tokens
        return DiskStats(
            **self._writer.counts._asdict(),
            hit_tokens=hits,
            read_bytes=hits * self.kind.bytes_per_token,
            corrupt=self._shelf.corrupt,
        )

    def find(self, tokens: Sequence[int] | Ints, namespace: str = "") -> int:
        """How many of the first tokens are stored. Counts as no use, and reads no KV: so a `read` may still fail."""
        return sum(piece.length for piece in self._pieces(_as_bytes(tokens), namespace))

    def read(self, tokens: Sequence[int] | Ints, namespace: str, start: int, end: int) -> Bytes | None:
        """The KV of the tokens from `start` to `end`, uint8[end - start, bytes_per_token]; None where not all of it is
        there and right. Counts as a use of the whole prefix."""
        data = _as_bytes(tokens)
        if not 0 <= start <= end <= len(data) // INT:
            raise ValueError(f"no tokens from {start} to {end} in {len(data) // INT}")
        for _ in range(_TRIES):
            pieces = self._pieces(data[: end * INT], namespace)
            if sum(piece.length for piece in pieces) < end:
                return None
            rows = self._rows(pieces, start, end)
            if rows is not None:
                self._shelf.touch([piece.name for piece in pieces])
                with self._lock:
                    self._hit_tokens += end - start
                return rows
        return None

    def missing(self, tokens: Sequence[int] | Ints, namespace: str = "") -> list[tuple[int, int]]:
        """What `write` would ask for: the blocks that are neither stored nor waiting to be, as (start, end)."""
        return [(block.name.start, block.end) for block in self._unstored(self._cut(tokens, namespace))]

    def write(self, tokens: Sequence[int] | Ints, namespace: str, rows: Rows, start: int = 0) -> int:
        """Store the KV of a prefix, as far as it is not stored yet; of how many tokens that will be, soon and at best.

        `rows`: uint8[n, bytes_per_token], the KV of the tokens from `start` on, which is copied; or a function that
        gives the rows from one position to another, in a new array each time. It is called before this returns, once
        for each block that is to be stored. Files are written afterwards, in another thread.
        """
        blocks = self._cut(tokens, namespace)
        wanted = self._unstored(blocks)
        if callable(rows):
            get = rows
        else:
            given, until = rows, start + len(rows)
            # After a gap nothing would be found.
            fits = [start <= block.name.start and block.end <= until for block in wanted]
            wanted = wanted[: [*fits, False].index(False)]

            def get(a: int, b: int) -> Bytes:
                return given[a - start : b - start].copy()

        wanted = self._writer.claim(wanted)
        if not wanted:
            return 0
        try:
            ready = [(block, self._checked(get(block.name.start, block.end), block)) for block in wanted]
        except BaseException:
            self._writer.drop(wanted)
            raise
        self._writer.put(Job(ready, [block.name for block in blocks]))
        return sum(block.length for block in wanted)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that waits is written or given up, `timeout` seconds at most; whether that is so."""
        return self._writer.flush(timeout)

    def close(self) -> None:
        """Write what waits, and nothing more after that. Reading goes on. May be called again."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cut(self, tokens: Sequence[int] | Ints, namespace: str) -> list[Block]:
        return cut(_as_bytes(tokens), root_key(self.kind, namespace), self.kind.block)

    def _pieces(self, data: bytes, namespace: str) -> list[_Piece]:
        """The longest beginning that is stored: whole blocks, and of the one after them what it has in common."""
        pieces: list[_Piece] = []
        parent, at, step = root_key(self.kind, namespace), 0, self.kind.block * INT
        while ids := data[at : at + step]:
            name = Name(parent, block_key(parent, ids), at // INT)
            if name in self._shelf:
                piece = _Piece(name, len(ids) // INT)
            elif near := self._shelf.nearest(parent, ids):
                piece = _Piece(*near)
            else:
                break
            pieces.append(piece)
            if piece.length < self.kind.block:
                break
            parent, at = piece.name.key, at + step
        return pieces

    def _unstored(self, blocks: list[Block]) -> list[Block]:
        """Those that are neither stored, alone or as the beginning of a longer one, nor waiting to be written."""
        wanted: list[Block] = []
        for block in blocks:
            if block.name in self._writer:
                continue
            if block.name in self._shelf:
                # Where one has gone, others may have too.
                if not wanted or os.path.exists(self._shelf.path(block.name)):
                    continue
            elif not wanted:
                # (Of what follows one that is not there, at worst a beginning is written once more.)
                near = self._shelf.nearest(block.name.parent, block.ids)
                if near is not None and near[1] == block.length:
                    continue
            wanted.append(block)
        return wanted

    def _rows(self, pieces: list[_Piece], start: int, end: int) -> Bytes | None:
        """The rows from `start` to `end`; None where a piece has gone or is bad, which is known from then on."""
        out = np.empty((end - start, self.kind.bytes_per_token), dtype=np.uint8)
        for name, length in pieces:
            low, high = max(start, name.start), min(end, name.start + length)
            if low >= high:
                continue
            try:
                rows = self._shelf.rows(name)
            except (BadBlock, OSError):
                return None
            out[low - start : high - start] = rows[low - name.start : high - name.start]
        return out

    def _checked(self, rows: Bytes, block: Block) -> Bytes:
        shape = (block.length, self.kind.bytes_per_token)
        if rows.dtype != np.uint8 or rows.shape != shape:
            raise ValueError(f"rows must be uint8{list(shape)}, not {rows.dtype}{list(rows.shape)}")
        return np.ascontiguousarray(rows)


def _as_bytes(tokens: Sequence[int] | Ints) -> bytes:
    """Tokens as little-endian int32."""
    return as_ints(tokens, "tokens").astype("<i4", copy=False).tobytes()
