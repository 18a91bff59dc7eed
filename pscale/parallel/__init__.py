"""Parallel strategies: one file each, exchanges over a named axis; `strategies` lists them."""

from pscale.parallel.strategies import check

__all__ = ["check"]
