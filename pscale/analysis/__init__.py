"""Tables in, findings out: pure functions over the data frames of a run."""
