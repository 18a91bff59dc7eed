"""What a rank can record of a step: the words in which the worker writes and the analysis reads."""

from __future__ import annotations

from enum import IntEnum
from typing import get_args

from pscale.config.choices import Phase

ACTIONS = ("forward", "backward", "input", "weight")  # of a pipeline's schedule
PHASES: tuple[str, ...] = get_args(Phase)

# Calls by whom they depend on; see docs/measurement.md.
AMONG_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("gather", "reduce")
BETWEEN_TWO = ("send", "receive")
OFFLOADING = ("read", "write")  # of a file beside memory
FOREIGN = ("scan", "neighbours", "communicator")  # of programs that are watched
VERBS = (*AMONG_ALL, *FROM_ROOT, *TO_ROOT, *BETWEEN_TWO, "copy", *OFFLOADING, *FOREIGN)


class Kind(IntEnum):
    """What an event is."""

    STEP = 0
    PHASE = 1
    CALL = 2
    ROOT = 3  # a call on the rank that the others depend on
    POSTED = 4
    POLLED = 5  # tested: not complete yet
    POLLED_COMPLETE = 6  # tested: complete, though the rank need not have it yet
    COMPLETED = 7  # from here on the rank relies on it; takes no time if polled complete before
    COPIED = 8
    INJECTED = 9  # a delay, on purpose
    IO_SUBMITTED = 10  # a read or write of a file, to the thread that does them
    IO_WAITED = 11  # the step waited for one
    IO_DONE = 12  # by the thread, some time before this was recorded
