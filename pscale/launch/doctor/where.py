"""Where a suite that says nothing of it would be launched, and why there."""

from __future__ import annotations

import os

from pscale.config import Launch
from pscale.errors import LaunchError, UsageError
from pscale.launch.doctor.finding import Finding
from pscale.launch.ground import survey
from pscale.launch.whereabouts import decide


def finding() -> Finding:
    """Look for a job around this process, and for schedulers that answer."""
    try:
        where = decide("auto", os.environ)
    except LaunchError as error:
        return Finding(topic="launches", level="fail", text=str(error))
    if where.silent:
        text = f"launches happen here: {where.silent[0].submits} is here, and no scheduler answers"
        remedy = f"if jobs should be submitted, see what `{' '.join(where.silent[0].alive)}` says"
        return Finding(topic="launches", level="warn", text=text, remedy=remedy)
    if where.scheduler is None:
        return Finding(topic="launches", level="ok", text=where.why)
    try:
        machine = survey(Launch(), os.environ).machine
    except (LaunchError, UsageError) as error:
        remedy = "say what its nodes are like in a site's profile: docs/clusters.md"
        return Finding(topic="launches", level="warn", text=f"{where.why}; {error}", remedy=remedy)
    nodes = f"{machine.host}: {machine.nodes} nodes with {machine.cores} cores"
    return Finding(topic="launches", level="ok", text=f"{where.why}; {nodes}")
