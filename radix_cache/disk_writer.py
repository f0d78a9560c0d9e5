"""What a disk tier writes, in a thread of its own: nobody waits for a disk."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from palmette.radix_cache.block_file import Block, Bytes, Name, make_private, parse, write_block
from palmette.radix_cache.shelf import Quota, Shelf

_log = logging.getLogger("palmette")

# How long the thread waits for more, in seconds, before it ends; the next job starts another one.
_IDLE = 2.0


class Job(NamedTuple):
    """Blocks of one prefix to write, first to last, with their rows; and the names of all blocks of the prefix."""

    blocks: list[tuple[Block, Bytes]]
    chain: list[Name]


class Written(NamedTuple):
    """Counters; none ever shrinks. See DiskStats."""

    written_tokens: int = 0
    written_bytes: int = 0
    evicted_bytes: int = 0
    dropped_tokens: int = 0


class Writer:
    """Stores the blocks that it is given, as far as there is room: in its queue, of about `queue_bytes` of rows, and on
    the disk. A block is to be claimed before its rows are made, so that none are made in vain.

    `writable` turns False for good with the first error of the disk, which the log tells once.
    """

    def __init__(self, shelf: Shelf, quota: Quota, queue_bytes: int) -> None:
        self.writable = True
        self._shelf = shelf
        self._quota = quota
        self._queue_bytes = queue_bytes
        # Guards all below, and tells the thread of jobs, and whoever flushes of their end.
        self._changed = threading.Condition()
        self._counts = dict.fromkeys(Written._fields, 0)
        self._jobs: deque[Job] = deque()
        self._claimed: set[Name] = set()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def __contains__(self, name: Name) -> bool:
        """Whether a block of that name waits to be written."""
        return name in self._claimed

    @property
    def counts(self) -> Written:
        with self._changed:
            return Written(**self._counts)

    def claim(self, blocks: list[Block]) -> list[Block]:
        """Those of the blocks, from the first on, that there is room for in the queue. Whoever claims blocks gives them
        to `put`, or up with `drop`. The rest counts as dropped."""
        width, taken = self._shelf.kind.bytes_per_token, []
        with self._changed:
            for block in blocks:
                size = block.length * width
                full = self._waiting_bytes and self._waiting_bytes + size > self._queue_bytes
                if full or self._closed or not self.writable:
                    break
                taken.append(block)
                self._claimed.add(block.name)
                self._waiting_bytes += size
            self._counts["dropped_tokens"] += _tokens(blocks) - _tokens(taken)
        return taken

    def put(self, job: Job) -> None:
        """Have blocks written that were claimed."""
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="palmette-disk", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is about to end
                    self._thread = None
                    self._release([block for block, _ in job.blocks], written=[])
                    return
            self._jobs.append(job)
            self._changed.notify_all()

    def drop(self, blocks: list[Block]) -> None:
        """Give up blocks that were claimed."""
        with self._changed:
            self._release(blocks, written=[])

    def flush(self, timeout: float | None) -> bool:
        """Wait until nothing waits, `timeout` seconds at most; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._claimed, timeout)

    def close(self) -> None:
        """Write what waits, and take nothing more."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def stop(self, error: OSError) -> None:
        """Write nothing more, because of an error that the log tells."""
        if self.writable:
            self.writable = False
            _log.warning("KV is no longer written to %s: %s", self._shelf.folder, error)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs and not self._closed:
                    self._changed.wait(_IDLE)
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            written: list[Block] = []
            try:
                self._store(job, written)
            except FileNotFoundError:
                pass  # somebody deletes the folder, or took our file for a dead process's
            except OSError as error:
                self.stop(error)
            except Exception:
                _log.exception("could not write KV to %s", self._shelf.folder)
            with self._changed:
                self._release([block for block, _ in job.blocks], written)

    def _store(self, job: Job, written: list[Block]) -> None:
        """Write the blocks of a job, each once there is room for it, and append it to `written` then."""
        # First and last: so that none of them goes to make room for another, and all are of one time.
        self._shelf.touch(job.chain)
        keep = {os.fspath(self._shelf.path(name)) for name in job.chain}
        for block, rows in job.blocks:
            if not self.writable:
                return
            room = self._quota.make_room(self._shelf.kind.size(block.length), keep)
            for path, size in room.gone:
                self._note_gone(path, size)
            if not room.enough:
                return
            folder = self._shelf.path(block.name).parent
            make_private(folder)
            size = write_block(folder, block, rows, self._shelf.kind)
            written.append(block)
            self._quota.note(size)
            self._shelf.add(block)
            self._count(written_tokens=block.length, written_bytes=size)
            for name in self._shelf.beginnings(block):
                self._delete(self._shelf.path(name))
        self._shelf.touch(job.chain)

    def _delete(self, path: Path) -> None:
        with suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            self._quota.note(-size)
            self._note_gone(os.fspath(path), size)

    def _note_gone(self, path: str, size: int) -> None:
        self._count(evicted_bytes=size)
        name = parse(os.path.basename(path))
        if name is not None and os.fspath(self._shelf.path(name)) == path:
            self._shelf.drop(name)

    def _release(self, blocks: list[Block], written: list[Block]) -> None:
        """These wait no longer. The lock is held."""
        self._claimed -= {block.name for block in blocks}
        self._waiting_bytes -= _tokens(blocks) * self._shelf.kind.bytes_per_token
        self._counts["dropped_tokens"] += _tokens(blocks) - _tokens(written)
        self._changed.notify_all()

    def _count(self, **more: int) -> None:
        with self._changed:
            for what, number in more.items():
                self._counts[what] += number


def _tokens(blocks: Iterable[Block]) -> int:
    return sum(block.length for block in blocks)
