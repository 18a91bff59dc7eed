"""Suites: a YAML file, validated whole, and the cases that it asks for on a machine."""

from pscale.suite.derive import unlimited
from pscale.suite.document import Document, Place, document_of, read_value
from pscale.suite.expand import expand
from pscale.suite.load import Auto, Expansion, Expectation, Suite, load_suite
from pscale.suite.override import Override, overridden
from pscale.suite.problems import nearest
from pscale.suite.schema import editor_schema
from pscale.suite.site import Site, find_site
from pscale.suite.written import suite_text

__all__ = [
    "Auto",
    "Document",
    "Expansion",
    "Expectation",
    "Override",
    "Place",
    "Site",
    "Suite",
    "document_of",
    "editor_schema",
    "expand",
    "find_site",
    "load_suite",
    "nearest",
    "overridden",
    "read_value",
    "suite_text",
    "unlimited",
]
