"""Which plans may keep a part of a rank's memory in a file, and what is free for it."""

from __future__ import annotations

import shutil

from pscale.config import Case
from pscale.nn.offload.scratch import folder_of


def free_bytes(case: Case) -> int | None:
    """Return what is free in the folder for the file, on this machine; None where it cannot be asked."""
    try:
        return shutil.disk_usage(folder_of(case.plan.offload_folder)).free
    except OSError:
        return None
