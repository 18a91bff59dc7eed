"""What a rank can note of a step: the words in which the worker writes and the analysis reads."""

from __future__ import annotations

from enum import IntEnum

ACTIONS = ("forward", "backward", "input", "weight")  # of a pipeline's schedule
PHASES = ("data", "forward", "backward", "sync", "update")

# Calls by whom they depend on; see docs/measurement.md.
AMONG_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("gather", "reduce")
BETWEEN_TWO = ("send", "receive")
OFFLOADING = ("read", "write")  # of a file beside memory
VERBS = (*AMONG_ALL, *FROM_ROOT, *TO_ROOT, *BETWEEN_TWO, "copy", *OFFLOADING)


class Kind(IntEnum):
    """What a note tells of."""

    STEP = 0
    PHASE = 1
    CALL = 2
    ROOT = 3  # a call on the rank that the others depend on
    POSTED = 4
    POLLED = 5  # not complete yet
    FOUND = 6  # complete, seen by asking: nobody has to have it yet
    COMPLETED = 7  # from here on the rank has it; takes no time if it was found before
    COPIED = 8
    INJECTED = 9  # lateness on purpose
    HANDED = 10  # a read or write was handed to the thread that does them
    STALLED = 11  # the step waited for one
    MOVED = 12  # the thread did one, some time before this was noted
