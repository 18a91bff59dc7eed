"""Measure how well training scales on this machine, and what limits it."""

__version__ = "0.1.0"
