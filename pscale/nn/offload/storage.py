"""One thread that has a file come and go, mapped or copied, so that the step goes on meanwhile."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter_ns
from typing import NamedTuple

from pscale.nn.offload.scratch import Bytes, Scratch, Window, whole_pages
from pscale.runs.schema import IoRecorder, Verb


class Transfer:
    """Work of the thread that was handed over: of so many bytes of the file, from `at` on."""

    __slots__ = ("at", "over", "size_bytes", "verb", "work")

    def __init__(self, verb: Verb, at: int, size_bytes: int, work: Callable[[], None]):
        self.verb, self.at, self.size_bytes, self.work = verb, at, size_bytes, work
        self.over = threading.Event()


class _Moved(NamedTuple):
    verb: Verb
    size_bytes: int
    enter: int
    leave: int


class Storage:
    """A file that is written behind the step and read ahead of it; `chunk_bytes` is the most at once.

    What is handed over is done in that order, so that a read after a write of the same memory, or of the same
    place in the file, needs no waiting in between. A window counts as read when it is fetched, and as written
    when what changed there is released.
    """

    def __init__(self, folder: Path, *, chunk_bytes: int, recorder: IoRecorder):
        self.chunk_bytes = chunk_bytes
        self._scratch, self._recorder = Scratch(folder), recorder
        self._queue: SimpleQueue[Transfer | None] = SimpleQueue()
        self._moved: deque[_Moved] = deque()
        self._failed: list[OSError] = []
        work = (self._queue, self._scratch, self._moved, self._failed)
        self._thread = threading.Thread(target=_serve, args=work, name="offload", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._queue.put, None)  # the thread does not know the storage

    @property
    def size_bytes(self) -> int:
        """Return the room that is set aside in the file."""
        return self._scratch.size_bytes

    def reserve(self, size_bytes: int) -> int:
        """Set aside room that reads as zeros, whole pages; return where it begins."""
        return self._scratch.reserve(whole_pages(size_bytes))

    def mapped(self, size_bytes: int) -> Window:
        """Set aside room, of whole pages, that reads as zeros; return it as memory."""
        return self._scratch.mapped(size_bytes)

    def fetch(self, window: Window, *, writable: bool) -> Transfer:
        """Begin to have a window come, of which nobody may use anything until the transfer is waited for."""
        work = partial(self._scratch.fetch, window, writable=writable)
        return self._hand("read", window.at, window.memory.nbytes, work)

    def release(self, window: Window, *, changed: bool) -> Transfer:
        """Begin to let a window go, which nobody uses until it is fetched again."""
        work = partial(self._scratch.release, window)
        return self._hand("write", window.at, window.memory.nbytes if changed else 0, work)

    def read(self, pieces: Sequence[Bytes], at: int) -> Transfer:
        """Begin to fill pieces of memory, which nobody may use until the transfer is waited for."""
        return self._hand("read", at, _total(pieces), partial(self._scratch.read, pieces, at))

    def write(self, pieces: Sequence[Bytes], at: int) -> Transfer:
        """Begin to write pieces of memory, which nobody may change until this or a later transfer is over."""
        return self._hand("write", at, _total(pieces), partial(self._scratch.write, pieces, at))

    def wait(self, transfer: Transfer) -> None:
        """Return when the transfer is over."""
        if not transfer.over.is_set():
            enter = perf_counter_ns()
            transfer.over.wait()
            self._recorder.io_waited(transfer.verb, enter, perf_counter_ns())
        self._settle()

    def close(self) -> None:
        """End the thread, when all is done, and give the room back."""
        self._end()
        self._thread.join()

    def _hand(self, verb: Verb, at: int, size_bytes: int, work: Callable[[], None]) -> Transfer:
        self._settle()
        transfer = Transfer(verb, at, size_bytes, work)
        self._recorder.io_submitted(verb, size_bytes)
        self._queue.put(transfer)
        return transfer

    def _settle(self) -> None:
        """Pass on what the thread has noted; raise what it has met."""
        while self._moved:
            self._recorder.io_done(*self._moved.popleft())
        if self._failed:
            raise self._scratch.explained(self._failed[0]) from self._failed[0]


def _total(pieces: Sequence[Bytes]) -> int:
    return sum(piece.nbytes for piece in pieces)


def _serve(
    queue: SimpleQueue[Transfer | None], scratch: Scratch, moved: deque[_Moved], failed: list[OSError]
) -> None:
    """Do what is handed over until there is nothing more to come; after a failure, nothing."""
    while (transfer := queue.get()) is not None:
        enter = perf_counter_ns()
        try:
            if not failed:
                transfer.work()
        except OSError as error:
            failed.append(error)
        moved.append(_Moved(transfer.verb, transfer.size_bytes, enter, perf_counter_ns()))
        transfer.over.set()
    scratch.close()
