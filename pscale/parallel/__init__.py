"""Parallel strategies: one file each, exchanges over a named axis."""
