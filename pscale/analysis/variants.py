"""The variants of one run against each other: each case beside the one of its size in the first series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pscale.analysis import scaling
from pscale.analysis.circumstances import changes
from pscale.analysis.compare import (
    RELEVANT,
    Comparison,
    Missing,
    answers,
    labels_of,
    matched,
    name_of,
    notes,
    reason,
)
from pscale.analysis.frames import Run
from pscale.analysis.pairs import paired
from pscale.analysis.stats import Sample
from pscale.errors import UsageError

Size = tuple[int, int]  # ranks and threads
_PAIRED = (
    "Launches of a round are compared as pairs: what changed in the machine from round to round is not in "
    "the ratios. Rounds in which either launch went wrong are left out."
)


def variants(run: Run, relevant: float = RELEVANT) -> Comparison:
    """Compare every case with that of its ranks and threads in the first series, launches in pairs.

    Raises UsageError for a run of a single series.
    """
    series = list(dict.fromkeys(_series(run, case) for case in run.planned))
    if len(series) == 1:
        raise UsageError(
            f"{run.path} has no variants to compare; name a second run, `pscale compare {run.path} B`, "
            "or one of a suite that sweeps more than its sizes"
        )
    times = scaling.step_samples(run, run.seed)
    pairs, labels = _pairs(run, series[0]), labels_of(run)
    found = [
        matched(paired, (run, one, times[one]), (run, other, times[other]), label=labels[other], by="size")
        for other, one in pairs.items()
        if one in times and other in times
    ]
    return Comparison(
        a=f"{name_of(run)}: {series[0] or 'the first series'}",
        b=f"{name_of(run)}: {', '.join(series[1:])}",
        relevant=relevant,
        cases=answers(found, relevant),
        missing=tuple(_missing(run, pairs, times, series[0])),
        changes=changes(run, run, [(one.case, one.other) for one in found]),
        notes=(*notes(run, run, found), _PAIRED),
    )


def _pairs(run: Run, first: str) -> dict[str, str | None]:
    """Return, by every other case, the one of the first series that has its size."""
    by_size = {_size(run, case): case for case in run.planned if _series(run, case) == first}
    others = [case for case in run.planned if _series(run, case) != first]
    return {case: by_size.get(_size(run, case)) for case in others}


def _missing(
    run: Run, pairs: Mapping[str, str | None], times: Mapping[str, Sample], first: str
) -> Iterator[Missing]:
    labels = labels_of(run)
    for other, one in pairs.items():
        if one is None:
            yield Missing(label=labels[other], run="A", reason=f"no case of its size in {first}")
        for side, case in (("A", one), ("B", other)):
            if case is not None and case not in times:
                yield Missing(label=labels[case], run=side, reason=reason(run, case))


def _series(run: Run, case: str) -> str:
    return str(run.planned[case].get("series", ""))


def _size(run: Run, case: str) -> Size:
    planned = run.planned[case]
    return int(planned["ranks"]), int(planned.get("threads", 1))
