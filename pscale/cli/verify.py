"""`pscale verify`: every plan of a suite against the serial program, with this machine's MPI and BLAS."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pscale.analysis.text import size_of
from pscale.cli.console import new_console
from pscale.cli.costs import memory_fits
from pscale.cli.options import Verify
from pscale.cli.prepare import prepare
from pscale.config import Case, Save, Timing
from pscale.config.case import NARROW
from pscale.config.training import ROUNDINGS, is_16_bit
from pscale.errors import FAILED, UsageError
from pscale.launch import runner
from pscale.launch.outcome import Outcome
from pscale.launch.runner import CaseLaunch
from pscale.runs import atomic_files
from pscale.runs.atomic_files import to_json
from pscale.runs.journal import Journal
from pscale.runs.run_events import Ended, Event, Launched

STEPS, EPSILON, SCALE = 10, 1e-6, 2.0**10
_HEADING = (
    "Largest differences from the serial program, relative to the largest value of the tensor: losses of all "
    f"steps, gradients of the first step, weights after {STEPS}. Calls, bytes and point-to-point messages: "
    "all ranks in a step, one number where counted = predicted, else counted ≠ predicted."
)
_OFFLOADED = "file: offloaded bytes read and written by all ranks in a step."
_SAVED = (
    f"resumed: weights of runs that go on from the state after {STEPS // 2} steps: the plan from its own, "
    "bit for bit; unless compressed or of 16 bits, also from that of one rank, and one rank from the plan's. "
    "file: bytes saved, and read by a load."
)
_ROUNDED = (
    f"16-bit precision: loss and gradients of the first step, within {ROUNDINGS} roundings; weights: the "
    "largest difference between ranks."
)
_ROUTED = (
    "16-bit experts: the serial program repeats the plan's routing; choice: how much less probable, relative "
    "to the largest probability, that is than its own choice, in the first step."
)
_COMPRESSED = (
    "Compression changes what is learned: loss of the first step; its gradients as the sum of what was sent "
    "and what ranks keep as residuals; weights: the largest difference between ranks."
)

Verdict = Mapping[str, Any]
_KINDS = ("gradient", "weight")
_COUNTED = ("calls", "bytes", "messages", "file")
_CHOICE, _RESUMED = "choice", "resumed"


def verify(options: Verify) -> int:
    """Run each case and the serial program for STEPS steps; return 1 if any differs.

    Inside a job this happens on its nodes; nothing is submitted.
    """
    path, as_json = options.suite, options.as_json
    suite = prepare(path, options, submits=False)
    suite.check_blas()
    if any(case.workload.command for case in suite.cases):
        raise UsageError(
            f"{path} has a workload: only pscale's own trainer has a serial program to compare with"
        )
    cases = [proof(case) for case in suite.cases]
    fits = memory_fits(cases, suite.target.machine)
    suite = replace(suite, suite=replace(suite.suite, repeat=1, auto=None), cases=cases, fits=fits)
    launcher = suite.launcher()
    journal = Journal.create(options.reports / "verify", suite.suite.name, suite.document())
    verdicts: list[Verdict] = []
    console = new_console(stderr=as_json, highlight=False)

    labels = {case.id: case.label for case in cases}

    def show(event: Event) -> None:
        if isinstance(event, Launched):
            console.print(f"[dim]verifying {escape(labels[event.case])} …[/dim]")

    def settle(launch: CaseLaunch, outcome: Outcome) -> Ended:
        verdicts.append(_verdict(journal, launch, outcome))
        return runner.ended(launch.key, outcome)

    journal.observe(show)
    todo = [CaseLaunch(case=case, repeat=0, index=index) for index, case in enumerate(cases)]
    here, refused = suite.target.machine, suite.refused
    runner.run(journal, todo, launcher, here, settle=settle, task="verify", refused=refused)
    if as_json:
        print(to_json(verdicts))
    else:
        _show(console, cases, verdicts, every_tensor=options.every_tensor)
    return 0 if all(verdict["passed"] for verdict in verdicts) else FAILED


def _show(
    console: Console, cases: Sequence[Case], verdicts: Sequence[Verdict], *, every_tensor: bool
) -> None:
    for verdict in verdicts if every_tensor else ():
        console.print(*details(verdict), sep="\n")
    console.print(summary(verdicts))
    notes = {
        _HEADING: True,
        _COMPRESSED: any(case.plan.compression != "none" for case in cases),
        _ROUNDED: any(is_16_bit(case.model.dtype) for case in cases),
        _OFFLOADED: any(case.plan.offload != "none" for case in cases),
        _SAVED: any(case.train.save.every for case in cases),
        _ROUTED: any(verdict["errors"].get(_CHOICE) for verdict in verdicts),
    }
    for note in (note for note, applies in notes.items() if applies):
        console.print(note, style="dim")
    for verdict in verdicts:
        if not verdict["passed"]:
            console.print(f"[red]{escape(verdict['label'])}[/red]: {escape(verdict['reason'])}")


def proof(case: Case) -> Case:
    """Return the case as it is proved: in float64 or its 16 bits, a few steps, nothing measured beside them.

    The bias of the keys has no gradient but rounding (softmax does not see it), which Adam with a small
    epsilon would blow up to a weight; hence the larger one. At the scale of the loss here gradients of 16
    bits neither overflow nor vanish, as those of fp16 do without a scale.
    """
    rounds, asked = is_16_bit(case.model.dtype), case.loss_scale
    is_fixed = rounds and not isinstance(asked, str)
    vanishes = asked == "none" and case.model.dtype in NARROW
    loss_scale = SCALE if is_fixed or vanishes else case.precision.loss_scale
    return replace(
        case,
        model=case.model if rounds else replace(case.model, dtype="float64"),
        precision=replace(case.precision, initial_scale=SCALE, loss_scale=loss_scale),
        train=replace(
            case.train,
            steps=STEPS,
            warmup=0,
            epsilon=max(case.train.epsilon, EPSILON),
            save=Save(every=STEPS // 2 if case.train.save.every or case.train.load else 0),
            load="",
        ),
        timing=Timing(gemm_peak=False, overhead_steps=0),
    )


def _verdict(journal: Journal, launch: CaseLaunch, outcome: Outcome) -> Verdict:
    case = launch.case
    verdict: Verdict = {"label": case.label, "case": case.id, "ranks": case.ranks}
    if outcome.status != "ok":
        return {**verdict, "passed": False, "reason": outcome.reason, "errors": {}}
    path = journal.case_folder(launch.key) / "result.json"
    result = atomic_files.read_json(path)["verified"]
    why = "" if result["passed"] else reason(result)
    return {**verdict, **result, "totals": totals(result), "reason": why}


def totals(verdict: Verdict) -> dict[str, dict[str, int]]:
    """Return what all ranks do in a step, each as it was predicted and counted.

    Calls, bytes and messages; and where anything is offloaded, bytes between memory and files.
    """
    found: dict[str, dict[str, int]] = {name: {} for name in _COUNTED}
    for side in ("predicted", "counted"):
        rows = [row for row in verdict.get(side, ()) if ": " not in row[1]]  # of steps, not between them
        found["calls"][side] = sum(calls for *_, calls, _ in rows)
        found["bytes"][side] = sum(size for *_, size in rows)
        found["messages"][side] = sum(calls for _, _, verb, calls, _ in rows if verb == "send")
        found["file"][side] = sum(size for *_, size in verdict.get("files", {}).get(side, ()))
    return found


def summary(verdicts: Sequence[Verdict]) -> Table:
    """Return a table of all cases with the largest error of each kind; counts as predicted, or both."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("case", overflow="fold")
    counted = [name for name in _COUNTED if name != "file" or any(map(_moves, verdicts))]
    more = [kind for kind in (_CHOICE, _RESUMED) if any(verdict["errors"].get(kind) for verdict in verdicts)]
    kinds = ("loss", *_KINDS, *more)
    for name in ("ranks", *kinds, *counted):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for verdict in verdicts:
        found = [verdict["errors"].get(kind) for kind in kinds]
        worst = [f"{rows[0][1]:.0e}" if rows else "" for rows in found]
        sums = totals(verdict)
        counts = [_brief(name, **sums[name]) if verdict["errors"] else "" for name in counted]
        label, ranks = escape(verdict["label"]), str(verdict["ranks"])
        table.add_row(label, ranks, *worst, *counts, _word(passed=verdict["passed"]))
    return table


def details(verdict: Verdict) -> Iterator[Table | str]:
    """Yield a heading, a table of all tensors of a case, and one of all its calls."""
    if not verdict["errors"]:
        return
    limits, errors = verdict["limits"], {kind: dict(verdict["errors"][kind]) for kind in _KINDS}
    ((_, loss),) = verdict["errors"]["loss"]
    choices = "".join(f", {_CHOICE} {name} {error:.1e}" for name, error in verdict["errors"].get(_CHOICE, ()))
    within = ", ".join(f"{kind} {limits[kind]:.0e}" for kind in ("loss", *_KINDS))
    yield f"{escape(verdict['label'])}: loss {loss:.1e}{choices}; limits, of the largest value: {within}"
    tensors = Table("tensor", *_KINDS, "", box=None, header_style="bold", pad_edge=False)
    for name in sorted(errors["weight"], key=lambda name: (int(name.partition("/")[0]), name)):
        each = [errors[kind][name] for kind in _KINDS]
        passed = all(errors[kind][name] <= limits[kind] for kind in _KINDS)
        tensors.add_row(escape(name), *(f"{error:.1e}" for error in each), _word(passed=passed))
    yield tensors
    calls = Table("axis", "call", "calls", "bytes", box=None, header_style="bold", pad_edge=False)
    sides = {side: _by_verb(verdict[side]) for side in ("predicted", "counted")}
    for axis, verb in sorted(sides["predicted"].keys() | sides["counted"].keys()):
        predicted, counted = (found.get((axis, verb), (0, 0)) for found in sides.values())
        pairs = zip(predicted, counted, strict=True)
        calls.add_row(axis, verb, *(_compared(predicted=one, counted=other) for one, other in pairs))
    yield calls
    if _moves(verdict):
        files = Table("file", "bytes", box=None, header_style="bold", pad_edge=False)
        moved = {side: _of_verbs(verdict["files"][side]) for side in ("predicted", "counted")}
        for verb in sorted(moved["predicted"].keys() | moved["counted"].keys()):
            files.add_row(verb, _compared(**{side: sizes[verb] for side, sizes in moved.items()}))
        yield files


def reason(result: Verdict) -> str:
    """Say what differs most, or which calls or bytes of files were not predicted."""
    if differing := _differing(result):
        side, (rank, axis, verb, calls, size) = differing
        side = "made" if side == "counted" else side
        return f"calls differ: {side} on rank {rank}: {calls} × {verb} over {axis}, {size} bytes"
    if differing := _differing(result["files"]):
        side, (rank, verb, size) = differing
        return f"bytes of files differ: {side} on rank {rank}: {verb} {size} bytes"
    limits = result["limits"]
    kind, (name, error) = max(
        ((kind, rows[0]) for kind, rows in result["errors"].items() if rows),
        key=lambda worst: worst[1][1] / limits[worst[0]],
    )
    if kind == _RESUMED and not math.isfinite(error):
        return "the run that goes on from its own saved state does not end with the same weights"
    if not math.isfinite(error):
        where = "in the plan or in the serial program"
        return f"{kind} {name} is not finite, {where}; lower train.lr or set train.clip"
    return f"{kind} {name} differs by {error:.1e} of its largest value, over the limit of {limits[kind]:.0e}"


def _differing(sides: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]] | None:
    """Return the first row that one side alone has, and which; None if both have the same."""
    counted, predicted = ({tuple(row) for row in sides[name]} for name in ("counted", "predicted"))
    alone = sorted(counted ^ predicted)
    return ("counted" if alone[0] in counted else "predicted", alone[0]) if alone else None


def _by_verb(rows: Sequence[Sequence[Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return calls and bytes of all ranks by axis and verb."""
    calls: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for _, axis, verb, number, size in rows:
        calls[axis, verb] += number
        sizes[axis, verb] += size
    return {key: (calls[key], sizes[key]) for key in calls}


def _moves(verdict: Verdict) -> bool:
    """Tell whether anything goes to files or comes from them, or should."""
    return any(totals(verdict)["file"].values())


def _of_verbs(rows: Sequence[Sequence[Any]]) -> Counter[str]:
    """Return bytes of all ranks between memory and files by verb."""
    sizes: Counter[str] = Counter()
    for _, verb, size in rows:
        sizes[verb] += size
    return sizes


def _compared(*, predicted: int, counted: int) -> str:
    """Write what was counted, and what was predicted if that differs."""
    return f"= {counted:,}" if counted == predicted else f"{counted:,} ≠ {predicted:,}"


def _brief(name: str, *, predicted: int, counted: int) -> str:
    """Write a count as shortly as it may be: in full if it was not predicted so."""
    if counted != predicted:
        return f"{counted:,} ≠ {predicted:,}"
    return size_of(counted) if name in {"bytes", "file"} else str(counted)


def _word(*, passed: bool) -> str:
    return "[green]equal[/green]" if passed else "[red]differs[/red]"
