"""The clocks of all ranks by the plainest means: every rank on its own, one operation after another."""

from collections import defaultdict

from pscale.mesh.dry import AxisCall
from pscale.mesh.grid import axis_name, members, spanned
from pscale.parallel.ranks import GROUPS
from pscale.predict.step_program import Segment, step_of
from pscale.runs.schema import FROM_ROOT, TO_ROOT
from pscale.training.dry_run import rank_program


def step_ends(case, costs, pace, steps):
    """Return when the last rank ends each step; `pace(step, rank)` is by how much longer it computes."""
    return _World(case, costs, pace, steps).run()


class _World:
    def __init__(self, case, costs, pace, steps):
        sizes = case.plan.sizes
        self.spans = {axis_name(span): span for span in (spanned(sizes, each) for each in GROUPS)}
        self.case, self.costs, self.pace, self.steps = case, costs, pace, steps
        self.entered = defaultdict(dict)  # by call and rank
        self.sent = {}
        self.ends = defaultdict(list)

    def run(self):
        walks = [self.walk(rank) for rank in range(self.case.ranks)]
        while walks:
            walks = [walk for walk in walks if next(walk, "over") != "over"]
        return [max(of_step) for of_step in zip(*self.ends.values(), strict=True)]

    def walk(self, rank):
        """Yield where the rank has to wait."""
        program, made, started, clock = step_of(rank_program(self.case, rank)), defaultdict(int), {}, 0.0
        for step in range(self.steps):
            for each in program:
                if isinstance(each, Segment):
                    clock += float(self.costs.segment(each).values[0]) * self.pace(step, rank)
                if not isinstance(each, AxisCall):
                    continue
                group = members(self.case.plan.sizes, self.spans[each.axis], rank)
                if each.event != "wait":
                    where = started[each.request] = self.enter(each, rank, group, made, clock)
                cost = self.costs.call(each, len(group))
                gives = (each.verb in FROM_ROOT and each.root) or (each.verb in TO_ROOT and not each.root)
                if each.event == "start" or gives:
                    clock += float(cost.late[0])
                    continue
                where = started[each.request]
                while (last := self.last(each, where, group)) is None:
                    yield "waiting"
                clock = last + float(cost.last[0]) if last > clock else clock + float(cost.late[0])
            self.ends[rank].append(clock)

    def enter(self, call, rank, group, made, clock):
        if call.verb in ("send", "receive"):
            partner = group[(group.index(rank) + call.partner) % len(group)]
            pair = (rank, partner) if call.verb == "send" else (partner, rank)
            where = (call.axis, *pair, made[call.axis, call.verb, pair])
            made[call.axis, call.verb, pair] += 1
            if call.verb == "send":
                self.sent[where] = clock
        else:
            where = (call.axis, group[0], made[call.axis])
            made[call.axis] += 1
            self.entered[where][rank] = clock if call.root or call.verb not in FROM_ROOT else float("-inf")
        return where

    def last(self, call, where, group):
        if call.verb == "receive":
            return self.sent.get(where)
        entered = self.entered[where]
        return max(entered.values()) if len(entered) == len(group) else None
