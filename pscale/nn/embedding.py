"""Tokens to vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.nn.buffers import Array, Buffers
from pscale.nn.param import Param
from pscale.nn.tile import ones


class Embedding:
    """Row of the token plus row of its position: integers (B, T) to (B, T, C)."""

    def __init__(self, token: Param, position: Param, *, buffers: Buffers):
        self.token, self.position, self.buffers = token, position, buffers
        self.params: Sequence[Param] = (token, position)

    def forward(self, tokens: Array) -> tuple[Array, Array]:
        """Look up; keeps the tokens, which stay the caller's and must not change before backward."""
        B, T = tokens.shape
        y = self.buffers.take((B, T, self.token.shape[1]), self.token.data.dtype)
        np.take(
            self.token.data, tokens, axis=0, out=y, mode="clip"
        )  # other modes of `take` buffer the output
        y += self.position.data[:T]
        return y, tokens

    def backward(self, dy: Array, tokens: Array) -> None:
        """Add each vector's gradient to its rows."""
        B, T, C = dy.shape
        order = np.argsort(tokens, axis=None, kind="stable")
        by_token = self.buffers.take((B * T, C), dy.dtype)
        np.take(dy.reshape(B * T, C), order, axis=0, out=by_token, mode="clip")
        present, starts = np.unique(tokens.ravel()[order], return_index=True)
        self.token.accumulator()[present] += np.add.reduceat(by_token, starts, axis=0)
        by_position = np.matmul(ones(B, dy.dtype), dy.reshape(B, T * C)).reshape(T, C)
        self.position.accumulator()[:T] += by_position
        self.buffers.give(by_token)
        self.buffers.give(dy)
