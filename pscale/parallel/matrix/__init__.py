"""Matrix parallelism: every product of matrices shared by the ranks of a grid of two or three dims.

Activations and weights lie in blocks, `grid` says where. An algorithm knows how to multiply such blocks:
`cannon` and `summa` on a square, `agarwal` and `axonn` on any grid of three dims. `linear` makes a layer of
it, `norm` and `ends` have what else is different where columns are cut; `costs` and `rehearsal` know calls
and memory before a process starts.
"""
