"""Predict a step on SimGrid: computing as the vector engine draws it, exchanges by their flows on links.

The vector engine prices each call alone. Where calls meet on a link, or many senders on one receiver, that
cannot be right; here they share what there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pscale.config import Case
from pscale.errors import UsageError
from pscale.predict.costs import Costs
from pscale.predict.engine import DRAWS, Interval, Prediction, drawn_paces, paces_for, predict
from pscale.predict.network import CONGESTED
from pscale.predict.profile import Profile
from pscale.predict.simgrid import Seconds, simulate
from pscale.predict.step_program import Block, Segment, StepProgram, step_program
from pscale.predict.walk import StepPaces, delays_of
from pscale.simulator.network import Network

STEPS = 8  # beside the first, which brings the ranks into their places
_KEPT = ("compute", "copy", "offload", "injected")  # kinds of time that no network changes


def predict_flows(
    case: Case, profile: Profile, network: Network | None, *, draws: int = DRAWS, seed: int = 0
) -> Prediction:
    """Predict the step of a case on the tiers of a network; raises SimGridError, UsageError or PlanError.

    The interval is as wide as the vector engine's; so is the share of a kind in the time for exchanges.
    """
    if network is None or network.tiers is None:
        raise UsageError("--engine simgrid needs a network: add --network FILE with tiers")
    program, random = step_program(case), np.random.default_rng(seed)
    alone = predict(case, profile, network, draws=draws, seed=seed, program=program)
    if program.ranks == 1:
        return alone
    source = paces_for(case, profile)[0]
    paces = list(drawn_paces([source], STEPS + 1, program, random))
    durations = _Durations(case=case, program=program, costs=Costs(profile, None), random=random)
    ends = simulate(program, durations.drawn(paces), network.tiers)
    lengths = np.diff(ends.max(axis=0))
    step_s, width = float(np.median(lengths)), alone.step_s.high / alone.step_s.value
    return replace(
        alone,
        step_s=Interval(value=step_s, low=step_s / width, high=step_s * width),
        draws=lengths,
        losses=_losses(alone.losses, step_s),
        notes=(
            *(note for note in alone.notes if not note.endswith(CONGESTED)),
            f"exchanges by SimGrid, over {STEPS} steps; waits by rank are the vector engine's",
        ),
    )


def _losses(alone: Mapping[str, float], step_s: float) -> dict[str, float]:
    """Return seconds by kind that add up to the step: exchanges take what the rest leaves."""
    kept = sum(alone.get(kind, 0.0) for kind in _KEPT)
    exchanged = {kind: seconds for kind, seconds in alone.items() if kind not in _KEPT} or {"transfer": 1.0}
    left = max(step_s - kept, 0.0) / sum(exchanged.values())
    found = {
        kind: seconds * (left if kind in exchanged else 1.0)
        for kind, seconds in {**exchanged, **alone}.items()
    }
    return {kind: seconds * step_s / sum(found.values()) for kind, seconds in found.items()}


@dataclass(frozen=True, kw_only=True)
class _Durations:
    """Draws the seconds of every segment, the delays that the case asks for included."""

    case: Case
    program: StepProgram
    costs: Costs
    random: np.random.Generator

    def drawn(self, paces: Sequence[StepPaces]) -> Seconds:
        """Return ranks x steps x as many as the longest block has."""
        most = max(len(_segments(block)) for block in self.program.blocks)
        found = np.zeros((*self.program.sizes.values(), len(paces), most))
        for number, block in enumerate(self.program.blocks):
            box = tuple(slice(each.start, each.stop) for each in block.places.values())
            drawn = np.stack([self._of_step(block, pace.computing[number][0]) for pace in paces], axis=-2)
            found[box][..., : drawn.shape[-1]] = drawn
        return found.reshape(self.program.ranks, len(paces), most)

    def _of_step(self, block: Block, pace: Seconds) -> Seconds:
        """Return places of a block x its segments."""
        delays = delays_of(self.case, self.program, block, self.random, (1, *block.shape))
        drawn = []
        for segment in _segments(block):
            values = self.costs.segment(segment).values
            took = self.random.choice(values, block.shape) * pace
            if segment.phase in delays:
                took = took + np.broadcast_to(delays.pop(segment.phase), (1, *block.shape))[0]
            drawn.append(took)
        return np.stack(drawn, axis=-1)


def _segments(block: Block) -> list[Segment]:
    return [each for each in block.step if isinstance(each, Segment)]
