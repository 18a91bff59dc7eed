"""What analysis and reports say, in sentences: functions of a row of a frame, grouped by topic.

Terminal, page and files choose among them; none cuts a text or takes it apart.
"""

from __future__ import annotations

from pscale.analysis.columns import Row
from pscale.analysis.efficiency import half
from pscale.analysis.wording import duration, percent

# Interference and stragglers

_ALWAYS = 0.9  # of the steps
_TAKEN = {  # from the cores of a case, by cause
    "others": "other processes used {} of these cores",
    "steal": "the hypervisor took {} of the time of these cores",
    "limit": "a limit on CPU time stopped the ranks for {} of the time",
    "off_core": "the ranks had no core for {} of the time",
}


def interference(row: Row) -> str:
    """Say how much was taken from the cores of a case, and by what."""
    return _TAKEN[row.cause].format(percent(row.share))


def straggler(row: Row) -> str:
    """Say who keeps the others waiting, how often, and what that looks like."""
    where = f" on {row.host}" if row.host else ""
    return (
        f"The others wait for rank {row.rank}{where}: {percent(row.step_share)} of the step, "
        f"{percent(row.wait_share)} of all waiting. It is late in {row.late_steps} of "
        f"{row.steps} steps, by {duration(row.late_s)} on average, mostly in {row.phase}."
    )


def straggler_hint(row: Row) -> str:
    """Say what usually makes a rank late as this one is."""
    if row.late_steps < _ALWAYS * row.steps:
        return "It stalls intermittently: look for other work on its core."
    return "It is slow all the time: look at its share of the work, its clock, and what else runs there."


# Steps


def loss_scale(row: Row) -> str:
    """Say how the scale of the loss went: 3 of 30 steps skipped, scale 32768."""
    return f"{row.skipped} of {row.steps} steps skipped, scale {row.last_scale:.10g}"


def loss(row: Row, name: str) -> str:
    """Say which share of the step is lost, with half of its interval: 18.6% ± 2.1%."""
    share = getattr(row, name)
    spread = half(share)
    return percent(share.value) + (f" ± {percent(min(1.0, spread))}" if spread is not None else "")
