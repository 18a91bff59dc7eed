"""One rank's step on paper: how much its pool of activations will hold, exactly, before a process starts.

`nn.rehearsal` has the layers of one process; here are those that exchange, and the order of a step.
"""
