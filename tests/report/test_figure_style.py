import re
from pathlib import Path

import pytest
from matplotlib.text import Text
from pictures import fitting
from synthetic import Point, summary_of

from pscale.cli.options import Report
from pscale.cli.report import report
from pscale.report import drawing
from pscale.report.figure_style import STYLES
from pscale.report.topics.cases import scaling_figure as scaling
from pscale.report.topics.communication import figure as calls
from pscale.report.topics.steps import breakdown_figure as breakdown
from pscale.report.topics.steps import wait_figure as wait
from pscale.report.topics.training import loss_figure as loss

pytestmark = pytest.mark.slow

PRINTED = [look for look in STYLES if look != "screen"]
LEAST_POINTS = 6  # what journals ask of labels


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    points = [
        Point(
            ranks=ranks,
            series=series,
            losses=[3.0, 2.0 - ranks / 100],
            noise=0.01,
            transfer_s=0.01 * (ranks > 1),
        )
        for series in ("bucketed · bucket 4 MiB", "all-reduce with a label that is far too long", "gather")
        for ranks in (1, 2, 3, 4, 8, 16)
    ]
    points.append(Point(ranks=32, series="gather", status="failed"))
    return summary_of(tmp_path_factory.mktemp("crowded") / "run", points, repeats=1, steps=4)


@pytest.mark.parametrize("look", PRINTED)
@pytest.mark.parametrize("draw", [scaling, breakdown, wait, calls, loss])
def test_a_figure_for_a_journal_is_a_column_wide_without_title_and_can_be_read(crowded, draw, look):
    with drawing.styled(STYLES[look]):
        figure = draw(crowded)
        labels = fitting(figure)
    assert figure.get_size_inches()[0] == 3.5
    assert crowded.title not in labels
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) > LEAST_POINTS


def test_figures_for_a_journal_are_written_separately_with_their_fonts_and_leave_the_report_alone(
    crowded, capsys
):
    report([Path(crowded.path)], Report(style="publication-serif"))
    written = [line for line in capsys.readouterr().out.splitlines() if line.endswith(".pdf")]
    assert len(written) == 5
    assert all("/figures/publication-serif/" in line for line in written)
    content = Path(written[0]).read_bytes()
    assert b"/FontFile2" in content
    assert re.search(rb"/BaseFont /[A-Z]{6}\+STIXGeneral", content)
    assert b"/Type3" not in content
    with drawing.styled():
        assert scaling(crowded).get_suptitle() == crowded.title
