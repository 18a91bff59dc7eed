import os
import threading
import tracemalloc
from contextlib import closing
from typing import ClassVar

import numpy as np
import pytest
from patience import LIMIT_S
from thread_mesh import Recorder, run_ranks

from pscale.config import Data, Model, Train
from pscale.data import prepare
from pscale.data.corpus import byte_counts, unigram_nats
from pscale.data.loading import PrefetchReader
from pscale.errors import PscaleError, UsageError
from pscale.mesh.alone import SelfMesh

MODES = ["memory", "mpi-io", "scatter", "files"]
WAYS = [
    (mode, split)
    for mode in MODES
    for split in ("partition", "sample")
    if (mode, split) != ("files", "sample")
]
MODEL = Model(sequence=16)
BATCH = 8


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "some text.bin"
    path.write_bytes(np.random.default_rng(0).bytes(4321))
    return path


class Noted:
    """A recorder that keeps what it is told of reads."""

    def __init__(self):
        self.said = []

    def io_submitted(self, verb, size_bytes):
        self.said.append(("submitted", verb, size_bytes))

    def io_waited(self, verb, enter, leave):
        self.said.append(("waited", verb, leave >= enter))

    def io_done(self, verb, size_bytes, enter, leave):
        self.said.append(("done", verb, size_bytes, leave >= enter))


def batches_of(source, folder, mesh, *, mode="memory", split="partition", micro_batches=1, prefetch=False):
    data = Data(source=str(source), loading=mode, split=split, prefetch=prefetch)
    return prepare(
        data, MODEL, Train(batch=BATCH, micro_batches=micro_batches), mesh, folder, recorder=Noted()
    )


def global_batches(source, folder, ranks, steps, **options):
    """Inputs and targets of all ranks in slot order, per step; shape (steps, 2, BATCH, T)."""
    micro_batches = options.get("micro_batches", 1)

    def one(mesh):
        with closing(batches_of(source, folder, mesh, **options)) as batches:
            filled = [[np.copy(batches.fill(step, m)) for m in range(micro_batches)] for step in range(steps)]
        return np.concatenate([np.stack(parts) for parts in zip(*filled, strict=True)], axis=2)

    return np.concatenate(run_ranks(ranks, one), axis=2)


@pytest.mark.parametrize(("mode", "split"), WAYS)
@pytest.mark.parametrize("cut", [(1, 2), (2, 1), (4, 2), (8, 1)], ids="{0[0]} ranks, {0[1]} micro".format)
def test_every_mode_delivers_the_same_global_batches_on_any_number_of_ranks(
    source, tmp_path, mode, split, cut
):
    ranks, micro_batches = cut
    steps = 40  # more than an epoch
    expected = global_batches(source, tmp_path, 1, steps, split=split)
    given = global_batches(
        source, tmp_path / "case", ranks, steps, mode=mode, split=split, micro_batches=micro_batches
    )
    assert given.shape == (steps, 2, BATCH, MODEL.sequence)
    assert np.array_equal(given, expected)


@pytest.mark.parametrize(("mode", "split"), [("mpi-io", "sample"), ("files", "partition")])
@pytest.mark.parametrize("cut", [(1, 2), (2, 1), (2, 2)], ids="{0[0]} ranks, {0[1]} micro".format)
def test_what_is_read_ahead_is_the_same(source, tmp_path, mode, split, cut):
    ranks, micro_batches = cut
    expected = global_batches(source, tmp_path, 1, 40, split=split)
    options = {"mode": mode, "split": split, "micro_batches": micro_batches, "prefetch": True}
    assert np.array_equal(global_batches(source, tmp_path / "case", ranks, 40, **options), expected)


class Slow:
    """A reader that reads no second micro-batch before it is let."""

    hints: ClassVar = {}

    def __init__(self):
        self.began, self.goes_on, self.is_closed = threading.Event(), threading.Event(), False

    def read(self, step, micro, windows):
        if micro:
            self.began.set()
            assert self.goes_on.wait(LIMIT_S)
        windows[:] = 10 * step + micro

    def close(self):
        self.is_closed = True


def test_the_next_micro_batch_is_read_while_this_one_is_computed_with_and_what_is_exposed_is_recorded():
    slow, noted, windows = Slow(), Noted(), np.zeros((2, 3), np.uint8)
    reader = PrefetchReader(slow, 2, windows.shape, noted)
    reader.read(0, 0, windows)
    assert slow.began.wait(LIMIT_S)  # and the step goes on
    assert windows.max() == 0
    result = reader._reading.result
    reader._reading.result = lambda: (slow.goes_on.set(), result())[1]  # nobody waits before
    noted.said.clear()
    reader.read(0, 1, windows)
    assert windows.min() == 1
    assert noted.said == [("waited", "read", True), ("done", "read", 6, True), ("submitted", "read", 6)]
    reader.read(7, 0, windows)  # not what follows
    assert windows.min() == 70
    reader.close()
    assert slow.is_closed


@pytest.mark.parametrize("split", ["partition", "sample"])
def test_batches_are_text_of_the_source_and_targets_the_byte_after(source, tmp_path, split):
    text = source.read_bytes()
    for inputs, targets in global_batches(source, tmp_path, 2, 5, split=split):
        for row, target in zip(inputs, targets, strict=True):
            assert bytes(row.tolist()) + bytes([target[-1]]) in text
            assert np.array_equal(row[1:], target[:-1])


@pytest.mark.parametrize("mode", MODES)
def test_files_are_made_for_the_job_alone(source, tmp_path, mode):
    folder = tmp_path / "case folder"
    made = {"mpi-io": {"corpus.bin"}, "files": {"corpus-0.bin", "corpus-1.bin"}}.get(mode, set())

    def one(mesh):
        batches = batches_of(source, folder, mesh, mode=mode)
        names = {path.name for path in folder.glob("*")}
        mesh.world.barrier()
        batches.close()
        return names

    assert run_ranks(2, one) == [made, made]
    assert not list(folder.glob("*"))


@pytest.mark.parametrize("mode", ["mpi-io", "files"])
def test_each_file_is_written_by_one_of_the_ranks_that_read_it(source, tmp_path, mode, monkeypatch):
    renamed, replace = [], os.replace
    monkeypatch.setattr("os.replace", lambda old, new: (renamed.append(new.name), replace(old, new)))
    run_ranks(
        {"pp": 2, "dp": 2, "tp": 2},
        lambda mesh: batches_of(source, tmp_path / "case", mesh, mode=mode).close(),
    )
    assert sorted(renamed) == (["corpus.bin"] if mode == "mpi-io" else ["corpus-0.bin", "corpus-1.bin"])


@pytest.mark.parametrize("mode", ["mpi-io", "files"])
def test_a_file_cut_short_under_way_is_an_error_that_names_it(source, tmp_path, mode):
    with closing(batches_of(source, tmp_path, SelfMesh(), mode=mode)) as batches:
        batches.fill(0, 0)
        (path,) = tmp_path.glob("corpus*.bin")
        path.write_bytes(b"short")
        with pytest.raises(PscaleError, match=rf"step 1: cannot read 17 bytes at 16 of '.*{path.name}': "):
            batches.fill(1, 0)


def test_a_folder_that_cannot_be_written_is_named(source):
    with pytest.raises(PscaleError, match=r"cannot write the data to '.*corpus.bin': "):
        batches_of(source, source, SelfMesh(), mode="mpi-io")


def test_a_write_that_fails_leaves_nothing_behind(source, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(PscaleError, match="No space left on device"):
        batches_of(source, tmp_path / "case", SelfMesh(), mode="files")
    assert not list((tmp_path / "case").iterdir())


class Verbs(Recorder):
    """A recorder that keeps the verbs and bytes of blocking calls."""

    def __init__(self):
        self.calls = []

    def call(self, _axis, verb, sent_bytes, _enter, _leave, *, root=False):
        self.calls.append((verb, sent_bytes, root))


@pytest.mark.parametrize("mode", MODES)
def test_only_scatter_communicates_in_a_step(source, tmp_path, mode):
    recorders = [Verbs(), Verbs()]

    def one(mesh):
        calls = recorders[mesh.world.rank].calls
        with closing(batches_of(source, tmp_path / "case", mesh, mode=mode, micro_batches=2)) as batches:
            calls.clear()
            for micro in range(2):
                batches.fill(0, micro)
            return list(calls)

    calls = run_ranks(2, one, recorders)
    sent_bytes = BATCH // 2 * (MODEL.sequence + 1)
    root, other = ([("scatter", sent_bytes, True)] * 2, [("scatter", 0, False)] * 2)
    assert calls == ([root, other] if mode == "scatter" else [[], []])


@pytest.mark.parametrize(("mode", "split"), WAYS)
def test_a_fill_allocates_nothing_of_the_size_of_a_batch(tmp_path, mode, split):
    source = tmp_path / "large.bin"
    source.write_bytes(bytes(400_000))
    data = Data(source=str(source), loading=mode, split=split)
    train = Train(batch=64, micro_batches=2)
    with closing(prepare(data, Model(sequence=4096), train, SelfMesh(), tmp_path)) as batches:
        batches.fill(0, 0)
        tracemalloc.start()
        peaks = []
        for step in range(3):  # what every fill allocates, and not what the interpreter does now and then
            tracemalloc.clear_traces()
            inputs, targets = batches.fill(step, 1)
            peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(peaks) < 32 * 4096 / 4  # a quarter of the windows as bytes, a 32nd of what is returned
    assert inputs.flags.c_contiguous
    assert targets.flags.c_contiguous
    assert inputs.dtype == targets.dtype == np.intp


def test_micro_batches_of_a_step_do_not_overwrite_each_other(source, tmp_path):
    batches = batches_of(source, tmp_path, SelfMesh(), micro_batches=2)
    first, _ = batches.fill(0, 0)
    kept = first.copy()
    batches.fill(0, 1)
    assert np.array_equal(first, kept)


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_rank_knows_the_unigram_loss_of_the_whole_corpus(source, tmp_path, ranks):
    expected = unigram_nats(byte_counts([np.frombuffer(source.read_bytes(), np.uint8)]))
    data = Data(source=str(source))
    given = run_ranks(ranks, lambda mesh: prepare(data, MODEL, Train(batch=3), mesh, tmp_path).columns)
    assert given == [{"loss_unigram": expected, "file_hints": None}] * ranks


def test_ranks_that_see_different_files_are_refused(tmp_path):
    for rank in range(2):
        (tmp_path / f"{rank}.bin").write_bytes(bytes(1000 + rank))

    def one(mesh):
        batches_of(tmp_path / f"{mesh.world.rank}.bin", tmp_path, mesh)

    with pytest.raises(UsageError, match="differs between ranks: 1000 to 1001 bytes"):
        run_ranks(2, one)
