"""Which BLAS NumPy multiplies with: its own, or one that is installed."""
