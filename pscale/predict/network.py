"""A network that is described and not measured, under the mesh of a plan."""

from __future__ import annotations

from pscale.predict.step_program import StepProgram
from pscale.simulator.network import Network, Price, Prices

CONGESTED = (
    "meets itself on links that ranks share: priced as if all took even turns, which leaves congestion out; "
    "--engine simgrid does not"
)


class Fabric:
    """What calls over the axes of a mesh cost on a network; raises PlanError where a tier is missing."""

    def __init__(self, network: Network, program: StepProgram):
        self._network, self._program = network, program
        self._prices: dict[str, Prices | None] = {}
        self._meeting: dict[str, None] = {}

    def price(self, axis: str, verb: str, payload_bytes: int) -> Price | None:
        """Return what a call costs; None where it costs what was measured."""
        if axis not in self._prices:
            program = self._program
            self._prices[axis] = self._network.prices(axis, program.members(axis), program.ranks)
        prices = self._prices[axis]
        if prices is None:
            return None
        price = prices(verb, payload_bytes)
        if price.meets:
            self._meeting[f"{verb.replace('_', '-')} over {axis}"] = None
        return price

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which of the calls that were priced cannot be right."""
        return tuple(f"{which} {CONGESTED}" for which in self._meeting)
