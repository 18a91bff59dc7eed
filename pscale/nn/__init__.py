"""NumPy layers, forward and backward, that know nothing of processes."""
