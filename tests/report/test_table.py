import pytest

from pscale.analysis import text
from pscale.analysis.columns import row
from pscale.analysis.stats import Estimate
from pscale.report.markup import table_lines
from pscale.report.table import Column, Table, Written, listed

STEP = Estimate(value=0.1234567, low=0.12, high=0.13)
TABLE = Table(
    title="Steps",
    columns=(
        Column("case", fold=True),
        Column("step", text.duration_3),
        Column("95% interval", text.duration_interval, interval=True, wide=True),
        *(Column("launches", str), Column("memory", text.size_of)),
    ),
    rows=(
        ("", ("a", STEP, STEP, Written(2, "2 of 3"), None)),
        ("base", ("a", 2.0, "base", 3, None)),
        ("bad", ("b\x1b", "failed", None, None, None)),
    ),
    grouped=True,
)


def test_values_are_written_by_their_columns():
    assert [cells for _, cells in TABLE.texts()] == [
        ("a", "123 ms", "120–130", "2 of 3", "-"),
        ("", "2 s", "base", "3", "-"),
        ("b ", "failed", "-", "-", "-"),
    ]


def test_a_declared_column_has_heading_format_and_hint_from_its_declaration():
    rows = [row("calls", case="a", axis="dp", bytes=2048, transfer_s=0.0015, wait_s=None)]
    (table,) = listed("Calls", rows, ["axis", "bytes", "transfer_s", Column("waits", get="wait_s")])
    assert [column.name for column in table.columns] == ["axis", "bytes", "transfer", "waits"]
    assert [cells for _, cells in table.texts()] == [("dp", "2 KiB", "1.5 ms", "-")]
    assert table.columns[2].hint == "in communication calls, after all ranks have arrived"
    (table,) = listed("Costs", [row("costs", core_s=STEP)], [Column(get="core_s", interval=True)])
    assert [column.name for column in table.columns] == ["95% interval"]
    assert [cells for _, cells in table.texts()] == [("120–130",)]


def test_a_table_leaves_out_what_no_row_has_and_what_there_is_no_room_for():
    assert [column.name for column in TABLE.filled().columns] == ["case", "step", "95% interval", "launches"]
    assert "95% interval" not in [column.name for column in TABLE.narrow().columns]
    assert "| :-- | --: | --: | --: |" in list(table_lines(TABLE.filled()))


def test_a_row_without_a_value_for_each_column_is_a_mistake():
    with pytest.raises(ValueError, match="zip"):
        list(Table(title="", columns=(Column("a"), Column("b")), rows=(("", ("x",)),)).texts())
