"""What became of the scale of the loss is in the report, and a warning where it cost measured steps."""

from synthetic import Point, summary_of

from pscale.analysis import messages
from pscale.report.topics.training import LOSS_SCALE


def point(label, ranks, skipped, asked="dynamic"):
    scales = [2.0**16] * 3 + [2.0**15] * 20
    row = {"loss_scale": asked, "loss_scales": scales, "skipped_steps": skipped, "warmup": 3}
    return Point(ranks=ranks, series=label, label=label, row=row)


def test_scales_and_skipped_steps_are_a_table_and_measured_ones_a_warning(tmp_path):
    points = [point("a", 1, [2]), point("b", 2, [2, 3, 9]), Point(ranks=4, series="c", label="c")]
    summary = summary_of(tmp_path / "run", points)
    assert [messages.loss_scale(each) for each in summary.rows("loss_scaling")] == [
        "1 of 23 steps skipped, scale 32768",
        "3 of 23 steps skipped, scale 32768",
    ]
    (table,) = LOSS_SCALE.tables(summary)
    assert [cells[:6] for _, cells in table.texts()] == [
        ("a", "dynamic", "65536", "32768", "1 of 23", "0"),
        ("b", "dynamic", "65536", "32768", "3 of 23", "2"),
    ]
    assert [(warning.label, warning.kind) for warning in summary.rows("warnings")] == [("b", "skipped")]
    assert "3 of 23 steps skipped" in summary.rows("warnings")[0].text
