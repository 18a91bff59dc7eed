"""What every format relies on in the list of topics."""

import pytest

from pscale.report.topics import TOPICS


def test_names_of_sections_and_figures_are_unique():
    for names in ([topic.name for topic in TOPICS], [topic.figure.name for topic in TOPICS if topic.figure]):
        assert len(names) == len(set(names))


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_a_topic_prints_no_table_without_rows_and_title(topic, summary, failed):
    for table in (*topic.tables(summary), *topic.tables(failed)):
        assert table.rows
        assert table.title
