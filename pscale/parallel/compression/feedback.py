"""Sums of encoded gradients: every rank gathers what all have encoded, decodes it and adds it up.

What an encoding leaves out stays on the rank and is added to the gradients of the next step (error feedback:
Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019), so that what was sent so far and what is held
back are together the sum of all gradients.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis
from pscale.nn.buffers import aligned, zeros_like

Array = NDArray[np.floating]
Message = NDArray[np.uint8]


class Codec(Protocol):
    """An encoding of flat gradients as a message of `message_bytes`, with `work_bytes` of memory."""

    message_bytes: int
    work_bytes: int

    def encode(self, x: Array, message: Message) -> None:
        """Write to `message` what is sent of `x`, and leave in `x` what is not."""
        ...

    def add_up(self, messages: Message, total: Array) -> None:
        """Replace `total` by the sum of what the rows of `messages` say, in their order."""
        ...


class Encoded:
    """The sum of what all ranks have encoded: bit for bit the same on each of them."""

    def __init__(self, grad: Array, axis: Axis, codec: Codec):
        self._grad, self._axis, self._codec = grad, axis, codec
        self.held_back = zeros_like(grad)
        self._message = aligned(codec.message_bytes)
        self._message.fill(0)  # what rounds it up as well
        self._everyone = aligned(axis.size * codec.message_bytes).reshape(axis.size, -1)
        self.buffer_bytes = (
            self.held_back.nbytes + self._message.nbytes + self._everyone.nbytes + codec.work_bytes
        )

    def ready(self, unit: int) -> None:
        """Wait for the others: nothing starts before the end."""

    def finish(self) -> None:
        """Encode this rank's gradients and what it held back, gather, decode and add up."""
        self.held_back += self._grad
        self._codec.encode(self.held_back, self._message)
        self._axis.all_gather(self._message[None], self._everyone)
        self._codec.add_up(self._everyone, self._grad)


def whole_words(size_bytes: int) -> int:
    """Return the bytes of a message whose numbers stay aligned when messages lie one after another."""
    return -(-size_bytes // 8) * 8
