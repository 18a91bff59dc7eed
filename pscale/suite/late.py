"""Whether what a case injects can take place: ranks that exist, in phases that they have."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.config import Case
from pscale.suite.problems import Problem

_WAY_OUT = "leave such cases out with `exclude`"


def lateness_problems(case: Case) -> list[Problem]:
    """Return what is wrong with the injection into a case."""
    if not case.injected:
        return []
    inject, jitter = case.inject, case.jitter
    problems = []
    if inject.delay_s:
        problems += [Problem(("inject", "rank"), text) for text in _of_rank(case, inject.rank, inject.phase)]
        if inject.every > case.train.steps:
            text = f"one step of {inject.every} is more than the {case.train.steps} measured steps"
            problems.append(Problem(("inject", "every"), text))
    for rank in jitter.ranks:
        problems += [Problem(("jitter", "ranks"), text) for text in _of_rank(case, rank, jitter.phase)]
    if jitter.mean_s and not jitter.ranks and jitter.phase == "data" and case.plan.pp > 2:
        text = "stages between the first and the last read no data; name ranks that do, or another phase"
        problems.append(Problem(("jitter", "phase"), text))
    return problems


def _of_rank(case: Case, rank: int, phase: str) -> Iterator[str]:
    if rank >= case.ranks:
        there = "rank 0 alone" if case.ranks == 1 else f"ranks 0 to {case.ranks - 1}"
        yield f"there is no rank {rank}, the case has {there}; {_WAY_OUT}"
    elif phase == "data" and 0 < (stage := rank * case.plan.pp // case.ranks) < case.plan.pp - 1:
        yield f"rank {rank} is of stage {stage}, which reads no data; take another phase"
