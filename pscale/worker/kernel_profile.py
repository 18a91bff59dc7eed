"""The kernel profile: calls, FLOPs, bytes and time of each class of kernels, by phase, in one step.

The step is run after the measured ones, with a wrapper around every kernel, so that it slows none of them.
What a step computes outside kernels (routing, sums of gradients, Python) is the class `other`,
whose FLOPs and bytes are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from pscale.nn import kernels
from pscale.nn.kernels import costs
from pscale.runs.schema import PHASES
from pscale.simulator.program import Rows
from pscale.training.trainer import Trainer
from pscale.worker.recorder import Recorder
from pscale.worker.tables import Column, Table, communicating, phase_table

OTHER = "other"

T = TypeVar("T")
Key = tuple[str, str]  # phase and class of kernels


class Profile:
    """The calls of kernels of one rank, each with its cost and times on the recorder's clock."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self.keys: list[Key] = []
        self.numbers: list[tuple[int, int, int, int]] = []  # FLOPs, bytes, enter, leave

    def call(self, cost: costs.Cost, function: Callable[..., T], *given: Any, **named: Any) -> T:
        """Call a function and note what it cost."""
        enter = self._recorder.now()
        result = function(*given, **named)
        leave = self._recorder.now()
        self.keys.append((self._recorder.place()[1], cost.kernel))
        self.numbers.append((cost.flops, cost.bytes, enter, leave))
        return result


class ProfiledKernels(kernels.Kernels):
    """The kernels that compute otherwise, every call of them in the profile."""

    def __init__(self, profile: Profile, inner: kernels.Kernels):
        self.name, self.threads = inner.name, inner.threads
        for name, declared in costs.KERNELS.items():
            setattr(self, name, partial(_call, profile, declared.cost, getattr(inner, name)))


def _call(
    profile: Profile, cost: Callable[..., costs.Cost], kernel: Callable[..., T], *given: Any, **named: Any
) -> T:
    return profile.call(cost(*given, **named), kernel, *given, **named)


def profile_kernels(trainer: Trainer[Recorder], index: int) -> Table:
    """Run step `index` with its kernels wrapped; return this rank's rows of the table `kernels`."""
    record = trainer.recorder
    profile = Profile(record)
    record.clear()
    record.enabled = True
    with kernels.in_this_thread(ProfiledKernels(profile, kernels.current())):
        trainer.step(index)
    record.enabled = False
    rows = record.rows()
    rows["step"][:] = 0
    return kernel_table(rows, profile)


def kernel_table(rows: Rows, profile: Profile) -> Table:
    """Sum calls by phase and class; what a rank computes in a phase outside them is `other`.

    Communication that goes on inside a kernel (progress of exchanges, sums of a loss over ranks) is not its
    time.
    """
    numbers = np.array(profile.numbers, np.int64).reshape(-1, 4)
    flops, moved, enter, leave = numbers.T
    time = leave - enter - _communication_within(rows, enter, leave)
    none = np.zeros_like(rows["enter"])
    step = phase_table(rows, none, none, none.astype(np.float64), int(rows["enter"].min(initial=0)))
    computed = dict(zip(step["phase"].tolist(), step["compute_s"].tolist(), strict=True))
    found: list[tuple[str, str, int, int, int, float]] = []
    for phase in PHASES:
        rest_s = computed[phase]
        for kernel in sorted({kernel for of, kernel in profile.keys if of == phase}):
            chosen = [key == (phase, kernel) for key in profile.keys]
            flop, byte, time_ns = (int(values[chosen].sum()) for values in (flops, moved, time))
            found.append((phase, kernel, sum(chosen), flop, byte, time_ns * 1e-9))
            rest_s -= time_ns * 1e-9
        found.append((phase, OTHER, 0, 0, 0, max(rest_s, 0.0)))
    names = ("phase", "kernel", "calls", "flops", "bytes", "time_s")
    return {name: np.array(values) for name, values in zip(names, zip(*found, strict=True), strict=True)}


def _communication_within(rows: Rows, enter: Column, leave: Column) -> Column:
    """Return how much of each interval is communication, copies and waits for files."""
    chosen = communicating(rows)
    order = np.argsort(rows["enter"][chosen], kind="stable")
    begins, ends = rows["enter"][chosen][order], rows["leave"][chosen][order]
    until = np.concatenate([[0], np.cumsum(ends - begins)])
    within: Column = until[np.searchsorted(begins, leave)] - until[np.searchsorted(begins, enter)]
    return within
