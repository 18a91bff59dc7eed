"""A recorded program run again on another network: nothing is computed, ranks exchange their clocks."""
