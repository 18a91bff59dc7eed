"""Which tables a report has, in order, whatever it is drawn with."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.summary import Summary
from pscale.report import grids, grids_cases, grids_models, grids_network, grids_plans
from pscale.report.grid import Grid
from pscale.report.grids_calls import calls
from pscale.report.grids_compression import compression
from pscale.report.grids_expect import expectations
from pscale.report.grids_offload import offload
from pscale.report.grids_optimizers import optimizers
from pscale.report.grids_precision import precisions
from pscale.report.grids_skipped import loss_scales
from pscale.report.grids_threads import threads
from pscale.report.networks import what_ifs
from pscale.report.trees import trees


def tables(summary: Summary, cases_across: int) -> Iterator[Grid]:
    """Yield all tables that the run has rows for; those with a case a column get at most `cases_across`."""
    yield from what_ifs(summary)
    yield from grids_network.bandwidths(summary)
    yield from grids_plans.ranking(summary)
    yield from grids_cases.scaling(summary)
    yield from grids.failures(summary)
    yield from expectations(summary)
    yield from trees(summary)
    yield from grids_models.models(summary)
    yield from threads(summary)
    yield from grids.phases(summary, cases_across)
    yield from grids_plans.bubbles(summary)
    yield from grids_plans.mixtures(summary)
    yield from compression(summary)
    yield from precisions(summary)
    yield from loss_scales(summary)
    yield from offload(summary)
    yield from optimizers(summary)
    yield from grids_plans.memory(summary)
    yield from grids.ranks(summary)
    yield from calls(summary)
