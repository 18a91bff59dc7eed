"""State in a file: the same bits, the bytes that are predicted, and nothing left behind."""

import contextlib
import errno
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from arena import Arena
from patience import LIMIT_S

from pscale.config import Train
from pscale.nn.offload import scratch
from pscale.nn.offload.scratch import OffloadError, Scratch
from pscale.nn.offload.storage import Storage
from pscale.nn.optimizers import make_optimizer
from pscale.nn.optimizers.base import update
from pscale.nn.optimizers.state import Flat, fullest, of_tensors
from pscale.nn.param import Param, normal

SIZES = [(300, 40), (7,), (40, 120), (1,), (64, 64)]


class Counted:
    """Notes, counted; stalls and moves come at any time."""

    def __init__(self):
        self.bytes = {"read": 0, "write": 0}
        self.moved_bytes = {"read": 0, "write": 0}
        self.stalls = []

    def io_submitted(self, verb, size_bytes):
        self.bytes[verb] += size_bytes

    def io_waited(self, verb, enter, leave):
        self.stalls.append((verb, leave - enter))

    def io_done(self, verb, size_bytes, enter, leave):
        assert enter <= leave
        self.moved_bytes[verb] += size_bytes


@contextlib.contextmanager
def storage(folder, chunk_bytes=4096, recorder=None):
    made = Storage(folder, chunk_bytes=chunk_bytes, recorder=recorder or Counted())
    yield made
    made.close()


def trained(train, steps, place=None):
    """Return the weights after some steps, two flat memories of several tensors."""
    arenas = []
    for layer in range(2):
        params = [
            Param(
                str(number),
                shape,
                layer=layer,
                draw=normal(1.0),
                decay=len(shape) > 1,
                matrices=int(number == 2),
            )
            for number, shape in enumerate(SIZES)
        ]
        arenas.append(Arena(params, "float32"))
    flats = [Flat(arena.data, arena.grad, arena.params) for arena in arenas]
    optimizer = make_optimizer(train, flats, storage=place)
    random = np.random.default_rng(5)
    for arena in arenas:
        arena.fill(1)
    for step in range(steps):
        for arena in arenas:
            arena.grad[...] = random.normal(size=arena.grad.size)
        update(optimizer, len(flats), 1e-2, 0.5, step + 1)
    return np.concatenate([arena.data for arena in arenas]), optimizer


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "lamb", "lion", "muon"])
def test_state_in_chunks_gives_the_bits_of_state_in_memory_and_moves_what_it_takes(kind, tmp_path):
    train, notes = Train(optimizer=kind, momentum=0.9), Counted()
    expected, whole = trained(train, 3)
    with storage(tmp_path, recorder=notes) as place:
        weights, optimizer = trained(train, 3, place)
        room = place.size_bytes
    assert np.array_equal(weights, expected)
    moved = room - room % 1024  # chunks end on a page in the file, and on a boundary in memory
    assert 0.5 * moved < notes.bytes["write"] / 3 <= moved
    looks = 2 if kind == "lamb" else 1
    assert notes.bytes["read"] - notes.bytes["write"] * looks <= 2 * max(map(len, optimizer.state))
    at_hand, all_ = (sum(array.nbytes for array in each.state) for each in (optimizer, whole))
    assert at_hand < (0.95 if kind in ("lamb", "muon") else 0.3) * all_


def test_where_two_chunks_are_all_there_is_they_stay_in_memory(tmp_path):
    assert list(fullest([80_000, 512])) == [0, 1]
    with storage(tmp_path) as place:
        params = [Param("w", (40,), layer=0, draw=normal(1.0))]
        arena = Arena(params, "float64")
        make_optimizer(Train(), [Flat(arena.data, arena.grad, params)], storage=place)
        assert place.size_bytes == 0


def test_the_two_chunks_that_take_most_together_are_those_that_may_be_in_memory():
    assert fullest([640, 64, 6400, 128, 5120]) == (2, 3)
    assert fullest([640, 64, 64, 640]) == (3, 0)


def test_tensors_stay_whole_and_keep_their_order():
    cuts = of_tensors([5, 5, 30, 0, 2, 9], 12)
    assert cuts == [slice(0, 2), slice(2, 3), slice(3, 6)]


@pytest.mark.parametrize("nameless", [True, False], ids=["file system with nameless files", "one without"])
def test_no_folder_lists_the_file(nameless, tmp_path, monkeypatch):
    if not nameless:
        monkeypatch.setattr(scratch.os, "O_TMPFILE", os.O_DIRECTORY | os.O_CREAT)  # refused with EINVAL
    made = Scratch(tmp_path)
    at = made.reserve(100)
    made.write(np.split(np.arange(100, dtype=np.uint8), [10, 10, 70]), at)
    back = np.zeros(100, np.uint8)
    made.read([back[:50], back[50:]], at)
    assert back.tolist() == list(range(100))
    assert list(tmp_path.iterdir()) == []
    made.close()


def test_a_folder_without_room_is_named_with_the_bytes_that_are_missing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with storage(tmp_path) as place:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        try:
            with pytest.raises(OffloadError) as error:
                place.reserve(1 << 20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(error.value).startswith(
        f"offload_folder {tmp_path} cannot take the 1,048,576 bytes of this rank"
    )
    with pytest.raises(OffloadError, match="takes no files"):
        Scratch(tmp_path / "missing")


@pytest.mark.parametrize("system", ["one that populates", "one that is older"])
@pytest.mark.parametrize("writable", [True, False], ids=["to be written", "to be read"])
def test_the_pages_of_a_window_are_there_from_its_fetch_to_its_release(
    system, writable, tmp_path, monkeypatch
):
    if system == "one that is older":  # it knows no such advice: EINVAL
        monkeypatch.setattr(scratch, "_POPULATE_READ", 9999)
        monkeypatch.setattr(scratch, "_POPULATE_WRITE", 9999)
    made = Scratch(tmp_path)
    window = made.mapped(64 * mmap.PAGESIZE)
    for value in (1, 2):
        assert resident_bytes(window) == 0
        made.fetch(window, writable=writable)
        assert resident_bytes(window) == window.memory.nbytes
        assert set(window.memory) == {value - 1}
        window.memory.fill(value)
        made.release(window)
    assert resident_bytes(window) == 0
    made.close()


def resident_bytes(window):
    """Return what is in memory of the mapping that begins with a window."""
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"{window.memory.ctypes.data:x}-"))
    size = next(line for line in lines[start:] if line.startswith("Rss:"))
    return int(size.split()[1]) * 1024


def test_a_folder_whose_files_cannot_be_mapped_is_named(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))  # as some file systems of networks say

    monkeypatch.setattr(scratch.mmap, "mmap", refused)
    with storage(tmp_path) as place, pytest.raises(OffloadError, match=f"{tmp_path} maps no files: No such"):
        place.mapped(mmap.PAGESIZE)


def test_pages_that_cannot_be_had_are_an_error_of_the_step_and_not_its_end(tmp_path):
    with storage(tmp_path) as place:
        window = place.mapped(4 * mmap.PAGESIZE)
        os.ftruncate(place._scratch._descriptor, mmap.PAGESIZE)  # what is mapped and not there is a SIGBUS
        transfer = place.fetch(window, writable=True)
        with pytest.raises(OffloadError, match=f"offload_folder {tmp_path}.*no page can be had"):
            place.wait(transfer)


def test_what_the_thread_cannot_write_is_said_to_the_step(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    made = Storage(tmp_path, chunk_bytes=4096, recorder=Counted())
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
    try:
        transfer = made.write([np.zeros(1 << 13, np.uint8)], 0)
        with pytest.raises(OffloadError, match=f"offload_folder {tmp_path}"):
            made.wait(transfer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    made.close()


def test_the_thread_ends_with_its_storage(tmp_path):
    made = Storage(tmp_path, chunk_bytes=4096, recorder=Counted())
    thread = made._thread
    assert thread in threading.enumerate()
    del made
    thread.join(LIMIT_S)
    assert not thread.is_alive()


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from pscale.config import Train
from pscale.nn.offload.storage import Storage
from pscale.nn.optimizers import make_optimizer
from pscale.nn.optimizers.base import update
from pscale.nn.optimizers.state import Flat
from arena import Arena
from pscale.nn.param import Param, constant
from pscale.worker.usage import peak_resident_bytes, reset_peak

class NullRecorder:
    io_submitted = io_waited = io_done = lambda self, *_: None

params = [Param("w", (4 << 20,), layer=0, draw=constant(1.0))]
arena = Arena(params, "float32")
flat = Flat(arena.data, arena.grad, params)
place = Storage(Path(sys.argv[1]), chunk_bytes=1 << 20, recorder=NullRecorder()) if sys.argv[1:] else None
reset_peak()
before = peak_resident_bytes()
optimizer = make_optimizer(Train(), [flat], storage=place)
for step in range(2):
    update(optimizer, 1, 1e-3, number=step + 1)
print(peak_resident_bytes() - before, flush=True)
sys.stdin.read()
"""


def test_resident_memory_falls_by_all_but_two_chunks_and_nothing_is_left_of_a_process_that_is_killed(
    tmp_path,
):
    program = [sys.executable, "-c", PROGRAM]
    one_thread = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }  # the stacks of many would be seen
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": one_thread}
    processes = [subprocess.Popen([*program, *where], **pipes) for where in ([str(tmp_path)], [])]
    offloaded, in_memory = (int(process.stdout.readline()) for process in processes)
    state, two_chunks = 2 * 4 * (4 << 20), 2 * 2 * (1 << 20)
    assert in_memory == pytest.approx(state, rel=0.05)
    assert in_memory - offloaded == pytest.approx(state - two_chunks, rel=0.05)
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert list(tmp_path.iterdir()) == []
