"""Cases in, processes out: what machine this is, command lines, the journal of a run."""
