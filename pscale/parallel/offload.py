"""Which plans may keep a part of a rank's memory in a file, and what is free for it."""

from __future__ import annotations

import shutil

from pscale.config import Case
from pscale.errors import PlanError
from pscale.nn.offload.scratch import folder_of
from pscale.nn.optimizers import rule_of


def check(case: Case) -> None:
    """Raise PlanError where nothing would be saved."""
    plan, train, rule = case.plan, case.train, rule_of(case.train.optimizer)
    if plan.offload == "none":
        return
    if case.model.kind == "collectives":
        raise PlanError(
            f"model.kind collectives keeps nothing for offload {plan.offload}; offload none works"
        )
    if plan.offloads_activations and (case.model.kind in ("linear", "block") or case.model.layers == 1):
        blocks = "no block" if case.model.kind == "linear" else "one block"
        also = " or optimizer" if rule.keeps(train) else ""
        raise PlanError(
            f"offload {plan.offload} saves nothing: {blocks} leaves nothing to keep while others compute; "
            f"offload none{also} works"
        )
    if plan.offloads_state and rule.factored:
        raise PlanError(
            f"offload {plan.offload} saves nothing: {train.optimizer} keeps only a number for "
            "each row and column of a matrix; offload none or optimizer adamw works"
        )
    if plan.offloads_state and not rule.keeps(train):
        raise PlanError(
            f"offload {plan.offload} saves nothing: {train.optimizer} without momentum keeps no state; "
            "offload none or momentum 0.9 works"
        )


def free_bytes(case: Case) -> int | None:
    """Return what is free in the folder for the file, on this machine; None where it cannot be asked."""
    try:
        return shutil.disk_usage(folder_of(case.plan.offload_folder)).free
    except OSError:
        return None
