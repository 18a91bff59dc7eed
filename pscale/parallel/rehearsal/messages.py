"""Messages between the stages of a pipeline."""

from __future__ import annotations

from pscale.nn.paper import Paper, Sheet


class Message:
    """A message that is on its way until it is asked for the second time."""

    def __init__(self) -> None:
        self._asked = False

    def poll(self) -> bool:
        """Say whether it has arrived."""
        arrived, self._asked = self._asked, True
        return arrived

    def wait(self) -> None:
        """Wait for nothing."""


class Edge:
    """What `Boundary` needs of an axis and of a pool."""

    def __init__(self, paper: Paper, stage: int):
        self.rank, self._paper = stage, paper
        self.give = paper.give
        self.begin_exchange, self.end_exchange = paper.begin_exchange, paper.end_exchange

    def take_exchange(self, shape: tuple[int], dtype: str) -> Sheet:  # noqa: ARG002
        """Take a message from the pool."""
        return self._paper.take_exchange(*shape)

    def start_send(self, x: Sheet, to: int) -> Message:  # noqa: ARG002
        """Send nothing."""
        return Message()

    def start_receive(self, out: Sheet, source: int) -> Message:  # noqa: ARG002
        """Receive nothing."""
        return Message()
