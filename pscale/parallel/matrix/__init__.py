"""Matrix parallelism: every product of matrices shared by the ranks of a grid of two or three axes.

Activations and weights lie in blocks, `grid` says where. An algorithm knows how to multiply such blocks:
`cannon` and `summa` on a square, `agarwal` and `axonn` on any grid of three axes. `layers` makes
layers of it.
"""
