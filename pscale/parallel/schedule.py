"""Pipeline schedules as data: what each stage does, in which order, and what that means for its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, NamedTuple

from pscale.config.choices import Schedule

Kind = Literal["forward", "backward", "input", "weight"]


class Action(NamedTuple):
    """One thing that a stage does with one micro-batch and one part of the model.

    `backward` is the whole of it; `input` finds the gradient of the part's input and leaves those of its
    matrices to a `weight` later on.
    """

    kind: Kind
    micro: int
    part: int


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """The actions of all stages. The model is cut in stages × chunks parts; part p is on stage p % stages."""

    schedule: Schedule
    stages: int
    micro_batches: int
    chunks: int = 1

    @property
    def parts(self) -> int:
        """Into how many parts the model is cut."""
        return self.stages * self.chunks

    @property
    def splits(self) -> bool:
        """Whether the gradients of matrices are deferred. One stage has nobody who could wait for it."""
        return self.schedule == "zero-bubble" and self.stages > 1

    def stage_of(self, action: Action) -> int:
        """Return who does it."""
        return action.part % self.stages

    def actions(self, stage: int) -> list[Action]:
        """Return what `stage` does, in order.

        All schedules are some forwards ahead, then a forward and a backward in turn, then the backwards that
        are left; they differ in how many are ahead. With several chunks a stage changes to the next after as
        many micro-batches as there are stages (Narayanan et al., 2021).
        """
        forwards, backwards = [], []
        for number in range(self.micro_batches * self.chunks):
            turn, place = divmod(number, self.parts)
            chunk, offset = divmod(place, self.stages)
            micro = turn * self.stages + offset
            forwards.append(Action("forward", micro, chunk * self.stages + stage))
            backwards.append(Action("backward", micro, (self.chunks - 1 - chunk) * self.stages + stage))
        actions = _in_turn(forwards, backwards, self._ahead(stage))
        return _defer(actions, delay=stage) if self.splits else actions

    def _ahead(self, stage: int) -> int:
        after = self.stages - 1 - stage
        if self.stages == 1:
            return 0
        match self.schedule:
            case "gpipe":
                return self.micro_batches
            case "1f1b" | "zero-bubble":
                return after
            case "interleaved":
                return 2 * after + (self.chunks - 1) * self.stages

    def source(self, action: Action) -> Action | None:
        """Return whose output `action` takes; None where it begins with data, the loss or what is there."""
        return self._neighbour(action, -1)

    def target(self, action: Action) -> Action | None:
        """Return who takes the output of `action`; None where it ends in the loss, the data or weights."""
        return self._neighbour(action, 1)

    def _neighbour(self, action: Action, step: int) -> Action | None:
        if action.kind == "weight":
            return None
        part = action.part + (step if action.kind == "forward" else -step)
        return action._replace(part=part) if 0 <= part < self.parts else None

    def arriving(self, stage: int, source: int) -> list[Action]:
        """Return those actions of `stage` whose input `source` sends, in the order in which it is sent."""
        targets = [self.target(action) for action in self.actions(source)]
        return [target for target in targets if target is not None and self.stage_of(target) == stage]


def _in_turn(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> list[Action]:
    pairs = zip_longest(forwards[ahead:], backwards)
    return [*forwards[:ahead], *(action for pair in pairs for action in pair if action is not None)]


def _defer(actions: Sequence[Action], delay: int) -> list[Action]:
    """Split backwards, and keep the weight parts of `delay` micro-batches for when there is nothing to do.

    With a delay of the stage's number this is ZB-H1 (Qi et al., 2023): stages near the end, which have fewer
    forwards ahead, defer more, so that none holds more micro-batches than the first does under 1F1B.
    """
    split, waiting = [], []
    for action in actions:
        if action.kind == "forward":
            split.append(action)
            continue
        split.append(action._replace(kind="input"))
        waiting.append(action._replace(kind="weight"))
        if len(waiting) > delay:
            split.append(waiting.pop(0))
    return split + waiting
