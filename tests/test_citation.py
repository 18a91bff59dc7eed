"""The file from which others cite pscale, and GitHub writes BibTeX."""

from pathlib import Path

import yaml

import pscale

CITATION = Path(__file__).parents[1] / "CITATION.cff"


def test_what_is_cited_has_all_that_the_format_requires_and_the_version_of_the_package():
    document = yaml.safe_load(CITATION.read_text(encoding="utf-8"))
    assert document["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= document.keys()
    assert all(author["name"] for author in document["authors"])
    assert document["version"] == pscale.__version__
