"""A simulator of recorded programs on other networks: nothing is computed, ranks exchange their clocks."""
