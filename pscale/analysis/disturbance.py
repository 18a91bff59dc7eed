"""What the machine itself tells against the times of a case: other work, the hypervisor, heat, limits."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

STEAL = 0.01  # of the time of the CPUs
SWITCHES_PER_S = 20.0  # of one rank
OTHERS = 0.10  # cores' worth of other work on the CPUs of the ranks
LOAD = 1.25  # over the cores that the run has used
CLOCK_SPREAD = 0.10  # of the median
QUOTA = 0.01  # of the wall
_LAUNCH = ["repeat", "host"]


def disturbances(ranks: pd.DataFrame, cores: int, *, bound: bool = False) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each, from the ranks of one case, which are `bound` to cores or not.

    `cores` are the most that a case of the run used.
    """
    wall_s = float(ranks["wall_s"].sum())
    if not wall_s > 0:
        return
    yield from _of_hypervisor(ranks, wall_s)
    yield from _of_other_work(ranks, cores, bound=bound)
    yield from _of_clock(ranks, wall_s)


def _of_hypervisor(ranks: pd.DataFrame, wall_s: float) -> Iterator[tuple[str, str]]:
    cpus = ranks["cpus"].astype(object).map(lambda text: max(1, len(cpus_in(text)))).astype(int)
    steal = (ranks["steal_s"] / ranks["wall_s"] / cpus).max()
    if steal > STEAL:
        yield (
            "steal",
            f"The hypervisor kept the CPUs of a rank back for {steal:.0%} of the time. "
            "Use a dedicated machine, or more repeats.",
        )
    quota = ranks["quota_s"].sum() / wall_s
    if quota > QUOTA:
        yield (
            "quota",
            f"The control group's limit on CPU time held the ranks back for {quota:.0%} of the time. "
            "Raise the limit, or use fewer ranks and threads.",
        )


def _of_other_work(ranks: pd.DataFrame, cores: int, *, bound: bool) -> Iterator[tuple[str, str]]:
    switches = (ranks["involuntary_switches"] / ranks["wall_s"]).max()
    if switches > SWITCHES_PER_S:
        yield (
            "switches",
            f"A rank was forced off its core {switches:.0f} times a second: something else runs there. "
            f"Stop it{'' if bound else ', bind ranks to cores'}, or leave a core free.",
        )
    spent = others(ranks, pd.Series("", index=ranks.index)).iloc[0]
    if spent > OTHERS:
        yield (
            "others",
            f"Other processes used {spent:.2g} cores' worth of the CPUs that the ranks run on. "
            "Free the machine of other work.",
        )
    load = ranks["load_average"].max()
    if load > LOAD * cores + 1:
        yield (
            "load",
            f"The host's load was {load:.3g}, while the run uses {cores} cores at most: "
            "other work ran or waited beside it. Free the machine.",
        )


def others(ranks: pd.DataFrame, cases: pd.Series[str]) -> pd.Series[float]:
    """Return, by case, how many cores other processes kept busy on the CPUs of its ranks, over its launches.

    Ranks that may run on the same CPUs have the same reading of them, which counts once.
    """
    keys = [cases.rename("case"), *(ranks[name] for name in _LAUNCH)]
    sets = ranks.groupby([*keys, ranks["cpus"]], observed=True)[["busy_s", "wall_s"]].max()
    hosts = ranks.groupby(keys, observed=True).agg(own_s=("cpu_s", "sum"), wall_s=("wall_s", "max"))
    levels = ["case", *_LAUNCH]
    busy_s = sets["busy_s"].groupby(level=levels, observed=True).sum(min_count=1)
    spent = hosts.assign(busy_s=busy_s).dropna().groupby(level="case").sum()
    found: pd.Series[float] = (spent["busy_s"] - spent["own_s"]) / spent["wall_s"]
    return found.reindex(pd.Index(sorted(cases.unique()), name="case"), fill_value=0.0)


def _of_clock(ranks: pd.DataFrame, wall_s: float) -> Iterator[tuple[str, str]]:
    throttled = ranks["throttled"].sum()
    if throttled > 0:
        yield (
            "throttled",
            f"Heat or power slowed the processor down {throttled:.0f} times in {wall_s:.3g} s of steps. "
            "Cool it, limit its clock, or use fewer cores.",
        )
    clocks = ranks["clock_mhz"].dropna()
    if len(clocks) and clocks.max() - clocks.min() > CLOCK_SPREAD * clocks.median():
        governor = ", ".join(sorted(ranks["governor"].dropna().astype(str).unique())) or "unknown"
        yield (
            "frequency",
            f"The processor's clock was between {clocks.min() / 1000:.2f} and {clocks.max() / 1000:.2f} GHz "
            f"(governor: {governor}). Use the governor `performance`, or fix the clock.",
        )


def cpus_in(affinity: object) -> set[int]:
    """Return the numbers in a list of CPUs such as "0-3,8"; none where it is unknown."""
    if not isinstance(affinity, str) or not affinity:
        return set()
    spans = [part.partition("-") for part in affinity.split(",")]
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}
