"""Runs that lack a size, a launch, a table or a column are reported: what needs it is left out."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from synthetic import Point, write_run

from pscale.analysis.expect import references
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.config import Workload
from pscale.report.brief import Answer
from pscale.report.exports import csv_tables, render_json
from pscale.report.page import draw_figures, write_all
from pscale.report.terminal import render_terminal

pytestmark = [pytest.mark.slow, pytest.mark.figure]
FAILED = {"status": "failed", "reason": "died"}
PENDING = {"only_repeats": ()}
SHAPES = {
    "one size": {2: {}},
    "only the base": {1: {}, 2: FAILED},
    "only the largest": {1: FAILED, 2: {}},
    "the base failed": {1: FAILED, 2: {}, 4: {}},
    "the largest failed": {1: {}, 2: {}, 4: FAILED},
    "pending": {1: {}, 2: PENDING},
    "all failed": {1: FAILED, 2: {"status": "timeout"}},
    "nothing yet": {1: PENDING, 2: PENDING},
    "no number in its row": {2: {"row": {"step_s": float("nan")}}},
    "one launch each": {1: {"only_repeats": (0,)}, 2: {"only_repeats": (0,)}},
}
OF_TRAINING = ("batch", "tokens", "parameters", "model_flops", "executed_flops", "gemm_peak_gflops", "losses")
PROGRAM = {
    "workload": Workload(command="solver", watch=True),
    "train": {"batch": 1},
    "row": dict.fromkeys(OF_TRAINING),
}
LACKS = [
    ("cases", column) for column in ("batch", "executed_flops", "losses", "step_s", "startup_s", "wall_s")
]
LACKS += [("ranks", column) for column in ("peak_rss_bytes", "wall_s", "blas", "unaccounted_s")]
LACKS += [(table, None) for table in ("steps", "calls", "ranks")]


def reported(folder):
    """Draw, write and print all that a report has, and return the sentences that it begins with."""
    summary = Findings(load(folder))
    draw_figures(summary)
    write_all(summary, folder, ())
    render_terminal(summary, Console(file=io.StringIO(), width=100), plot=True)
    render_json(summary)
    csv_tables(summary)
    references(summary.rows("cases"), summary.rows("merits"))
    assert Answer.of(summary).lines or Answer.of(summary).sentences
    return " ".join(line.text for line in summary.headlines)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("of", [PROGRAM, {}])
def test_a_run_that_lacks_sizes_or_launches_is_reported(tmp_path, shape, of):
    points = [
        Point(ranks=ranks, scaling="strong", noise=0.01, **{**of, **state})
        for ranks, state in SHAPES[shape].items()
    ]
    said = reported(write_run(tmp_path / "run", points, steps=6))
    assert said
    assert "unknown rate" not in said


@pytest.mark.parametrize(("table", "column"), LACKS)
def test_a_run_that_lacks_a_quantity_is_reported(tmp_path, table, column):
    points = [Point(ranks=ranks, noise=0.01, losses=(3.0, 2.0)) for ranks in (1, 2)]
    points.append(Point(ranks=4, **FAILED))
    folder = write_run(tmp_path / "run", points, steps=6)
    file = folder / "data" / f"{table}.parquet"
    if column is None:
        file.unlink()
    else:
        rows = pq.read_table(file)
        field = rows.schema.field(column)
        rows = rows.set_column(rows.schema.get_field_index(column), field, pa.nulls(len(rows), field.type))
        pq.write_table(rows, file)
    assert reported(folder)
