"""The one background thread with an asyncio loop that all programs of a process run on."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable

from palmette.errors import PalmetteError


class LoopThread:
    """A daemon thread with a running loop. `post` hands it a callback from any thread, also from a finalizer."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._inbox: deque[Callable[[], None]] = deque()
        self._awake = False
        thread = threading.Thread(target=self._serve, name="palmette-loop", daemon=True)
        thread.start()
        self._ident = thread.ident
        # Python must not end while this thread still frees a state's engine: torch's destructors take the GIL, and a
        # daemon thread that asks for it then aborts the process.
        atexit.register(self._finish, thread)

    def post(self, callback: Callable[[], None]) -> None:
        """Runs `callback` on the loop, in order of posting. Lock-free: append, then wake.

        Many posts in a row cost one wake-up: `_drain` clears the flag before it empties the inbox, so a post that still
        saw the flag set has been appended in time to be taken.
        """
        self._inbox.append(callback)
        if not self._awake:
            try:
                self._awake = True
                self.loop.call_soon_threadsafe(self._drain)
            except BaseException:
                # Ctrl-C in between: with the flag left set nobody would wake the loop again.
                self._awake = False
                raise

    def inside(self) -> bool:
        """Whether the caller is this very thread, where waiting for a state would never end."""
        return threading.get_ident() == self._ident

    def check(self) -> None:
        """Raises where a wait could not end: on the loop itself, and in a forked process, which has no such thread."""
        if self.inside():
            raise PalmetteError(
                "a state was read on palmette's own loop, where its work would have to wait for itself",
                hint="read states in the program's body, not in a backend or a callback",
            )
        if os.getpid() != self.pid:
            raise PalmetteError(
                "this state belongs to the parent process; its work does not run here",
                hint="run programs in the child process, or start it by spawn",
            )

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _finish(self, thread: threading.Thread) -> None:
        if os.getpid() == self.pid:
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join()

    def _drain(self) -> None:
        self._awake = False
        inbox = self._inbox
        while inbox:
            callback = inbox.popleft()
            try:
                callback()
            except Exception as error:
                # A fault in one callback must not strand those behind it.
                self.loop.call_exception_handler({"message": "palmette: a posted callback failed", "exception": error})


_lock = threading.Lock()
_current: LoopThread | None = None


def loop_thread() -> LoopThread:
    """This process's loop thread, started at first use; a forked process gets its own."""
    global _current
    current = _current
    if current is None or current.pid != os.getpid():
        with _lock:
            current = _current
            if current is None or current.pid != os.getpid():
                current = _current = LoopThread()
    return current
