"""What a job does between its steps, in no step time: it evaluates, and saves the state of the training."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from pscale.config import Case
from pscale.errors import PscaleError
from pscale.mesh.axis import Mesh
from pscale.parallel import saved_state
from pscale.runs.tensor_files import TensorFolder
from pscale.training.trainer import Trainer

_COLUMNS = ("evaluate_s", "save_s", "saved_bytes", *saved_state.LOADING)


class BetweenSteps:
    """The work of one rank between steps, and how long it took; `folder` is that of the launch."""

    def __init__(self, case: Case, trainer: Trainer[Any], mesh: Mesh, folder: Path):
        self._case, self._trainer, self._mesh = case, trainer, mesh
        self._kept, self._folder = (
            bool(case.train.save.folder),
            Path(case.train.save.folder or folder / "state"),
        )
        self._figures: dict[str, list[float]] = {name: [] for name in _COLUMNS}
        self._losses: dict[int, float] = {}  # this rank's share, by steps of the training

    def after(self, index: int) -> Callable[[], None] | None:
        """Return what is to be done after step `index`, if anything."""
        train, steps = self._case.train, self._trainer.start + index + 1
        due = [
            work
            for work, every in ((self._evaluate, train.evaluate.every), (self._save, train.save.every))
            if every and steps % every == 0
        ]
        return partial(_do, due, index) if due else None

    def load(self) -> None:
        """Go on from the saved state of the case."""
        self._load(saved_state.find(Path(self._case.train.load)))

    def columns(self) -> dict[str, Any]:
        """Return columns of the `cases` table, means over saves and loads; collective, at the end.

        Times are those of the slowest rank, bytes of all ranks.
        """
        if not self._kept and self._mesh.world.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
        found: dict[str, Any] = {}
        for name, figures in self._figures.items():
            mean = np.array([np.mean(figures) if figures else 0.0])
            self._mesh.world.all_reduce(mean, "sum" if name.endswith("_bytes") else "max")
            found[name] = float(mean[0]) if figures else None
        losses = np.array([*self._losses.values()])
        self._mesh.world.all_reduce(losses)
        evaluated = {"validation_losses": losses.tolist(), "validation_steps": [*self._losses]}
        return found | (evaluated if self._losses else dict.fromkeys(evaluated))

    def _evaluate(self, index: int) -> None:
        self._mesh.world.barrier()
        start = perf_counter()
        self._losses[self._trainer.start + index + 1] = self._trainer.evaluate()
        self._note({"evaluate_s": perf_counter() - start})

    def _save(self, index: int) -> None:
        self._mesh.world.barrier()
        start = perf_counter()
        saved, saved_bytes = self._trainer.save(self._case, self._mesh, self._folder, index)
        self._note({"save_s": perf_counter() - start, "saved_bytes": saved_bytes})
        if self._case.train.save.check:
            sums = self._checksums()
            self._load(saved)
            if sums != self._checksums():
                raise PscaleError(f"the state saved after step {index} was not the one that was loaded")

    def _load(self, folder: Path) -> None:
        by_broadcast = self._case.train.load_by == "broadcast"
        self._note(self._trainer.load(self._mesh, TensorFolder(folder), broadcast=by_broadcast))

    def _note(self, figures: Mapping[str, float]) -> None:
        for name, figure in figures.items():
            self._figures[name].append(figure)

    def _checksums(self) -> list[int]:
        return [zlib.crc32(held.tensor.memory.data) for held in self._trainer.replicas.state()]


def _do(works: Sequence[Callable[[int], None]], index: int) -> None:
    for work in works:
        work(index)
