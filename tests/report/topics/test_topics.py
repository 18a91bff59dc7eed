"""What every format relies on in the list of topics."""

import csv
import io

import pytest

from pscale.report.exports import csv_text, data_tables, frame_of
from pscale.report.topics import TOPICS


def test_names_of_sections_files_and_figures_are_unique(summary):
    sections = [topic.name for topic in TOPICS]
    files = [name for topic in TOPICS for name in topic.data(summary)]
    figures = [topic.figure.name for topic in TOPICS if topic.figure]
    for names in (sections, files, figures):
        assert len(names) == len(set(names))
    assert {name for topic in TOPICS for name in topic.files} <= {*data_tables(summary)}
    assert all(set(topic.computed) <= set(topic.data(summary)) for topic in TOPICS)


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_data_are_whole_with_any_run(topic, summary, failed):
    for run in (summary, failed):
        for table in topic.data(run).values():
            names, rows = table.tidy()
            assert all(set(row) == set(names) for row in rows)
            assert len(list(csv.DictReader(io.StringIO(csv_text(frame_of(table)))))) == len(rows)
            assert len(names) == len(set(names))
        for table in topic.tables(run):
            assert table.rows
            assert table.title
