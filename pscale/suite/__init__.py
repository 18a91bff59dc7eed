"""Suites: a YAML file, validated whole, and the cases that it asks for on a machine."""

from pscale.suite.expand import expand
from pscale.suite.load import Auto, Expansion, Expectation, Suite, load_suite
from pscale.suite.override import Override
from pscale.suite.schema import editor_schema
from pscale.suite.site import Site, find_site

__all__ = [
    "Auto",
    "Expansion",
    "Expectation",
    "Override",
    "Site",
    "Suite",
    "editor_schema",
    "expand",
    "find_site",
    "load_suite",
]
