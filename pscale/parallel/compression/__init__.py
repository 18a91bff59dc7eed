"""Gradients that travel with fewer bits, and what they lose sent later.

`feedback` exchanges what a codec makes of them: `blocks` rounds, `largest` picks. `factors` has a way of its
own. `plan` knows calls and memory before a process starts, `make` chooses.
"""
