"""Prove a plan on this machine: train with it and with the serial program, compare all, count what moves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.config import Case, Plan
from pscale.config.training import is_16_bit
from pscale.data import prepare
from pscale.mesh.alone import SelfMesh
from pscale.mesh.axis import Mesh
from pscale.nn.dtypes import tolerance
from pscale.nn.param import Cut, Param
from pscale.nn.routing import RouterStats
from pscale.parallel import saved_state
from pscale.runs.atomic_files import write_json
from pscale.runs.schema import VERBS, Kind
from pscale.runs.tensor_files import TensorFolder
from pscale.training.dry_run import evaluation_calls, loading, step_calls
from pscale.training.prediction import offloaded, prefetched_bytes, saved_bytes
from pscale.training.trainer import Trainer
from pscale.worker.job import JobSpec, make_trainer
from pscale.worker.recorder import Recorder
from pscale.worker.routing_replay import RoutingRecord, RoutingReplay

_EVALUATION, _LOADING = "evaluation: ", "load: "  # before the axes of their calls
_NUMBERS = {_EVALUATION: 1 << 30, _LOADING: 1 << 31}  # as of steps
_STATE = "state"  # folder of saved states
_ONE = "one"  # folder of the serial program: its state may have the name of the other
EPS = float(np.finfo(np.float64).eps)  # twice the most by which rounding changes a number

Array = NDArray[np.floating]
Name = tuple[int, str]  # layer, and name within it
Count = tuple[int, str, str, float, float]  # rank, axis, verb, calls and payload bytes of a step
Moved = tuple[int, str, float]  # rank, verb, bytes of a step from its file or to it
Routing = Callable[[Sequence[RouterStats]], AbstractContextManager[None]]  # of a step, watched or made


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank holds of a tensor."""

    name: Name
    shape: tuple[int, ...]
    cut: Cut | None
    value: Array


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a program gives: the loss of every step, the first step's gradients, the weights at the end.

    The last of the losses is that of the text that is held out, if any is. Of a case that saves the state of
    one step: where it is, and how many bytes this rank wrote.
    """

    losses: Array
    gradients: list[Part]
    weights: list[Part]
    saved: tuple[Path, int] | None = None


def verify(spec: JobSpec, mesh: Mesh, recorder: Recorder) -> None:
    """Run the case both ways and leave what differs in `result.json`; collective."""
    case = spec.case
    rounds = is_16_bit(case.model.dtype)
    record = RoutingRecord(case, mesh) if rounds and case.model.kind == "moe" else None
    parallel = trained(case, mesh, recorder, spec.folder, record or free_routing)
    moved = _moved(recorder, mesh, case.train.steps)
    resumed, read_bytes = _resumed(case, mesh, recorder, spec.folder, parallel)
    sizes = {"save": parallel.saved[1] if parallel.saved else 0, "load": read_bytes}  # a rank may own nothing
    moved += [(mesh.world.rank, verb, size) for verb, size in sizes.items() if size]
    counted = _counted(recorder, mesh, case.train.steps)
    everyone = mesh.world.gather_objects((parallel, counted, moved, resumed))
    if not everyone:
        return
    whole = on_one_rank(case)
    replay = RoutingReplay(record, whole, SelfMesh()) if record else None
    serial = trained(whole, SelfMesh(), Recorder([]), spec.folder / _ONE, replay or free_routing)
    weights = [part for rank, *_ in everyone for part in rank.weights]
    diverges = rounds or case.plan.compression != "none"  # programs differ once the first step is done
    compared = slice(1) if diverges else slice(None)
    errors: dict[str, Sequence[Sequence[Any]]] = {
        "loss": [["every step", _error(everyone[0][0].losses[compared], serial.losses[compared])]],
        "gradient": _errors([part for rank, *_ in everyone for part in rank.gradients], serial.gradients),
        "weight": _disagreements(weights) if diverges else _errors(weights, serial.weights),
        "choice": replay.errors() if replay else [],
    }
    if parallel.saved:
        rows = [("same plan", 0.0 if all(same for *_, (same, _) in everyone) else math.inf)]
        if not diverges:
            from_one = [part for *_, (_, parts) in everyone for part in parts]
            on_one, _ = _weights_from(parallel.saved[0], whole, SelfMesh(), spec.folder)
            sides = {"saved by one rank": from_one, "loaded by one rank": on_one}
            rows += [(name, _errors(each, serial.weights)[0][1]) for name, each in sides.items()]
        errors["resumed"] = sorted(rows, key=lambda row: -row[1])
    found = sorted(count for _, counts, *_ in everyone for count in counts)
    predicted, predicted_moves = _predicted(case, parallel.saved and parallel.saved[0])
    files = {
        "counted": sorted(each for _, _, moves, _ in everyone for each in moves),
        "predicted": predicted_moves,
    }
    limits = dict.fromkeys(errors, tolerance(case.model.dtype) if rounds else rounding(case))
    if not diverges and not _are_within(errors, limits):
        limits |= amplified(whole, serial, spec.folder)
        limits |= {"resumed": limits["weight"]} if parallel.saved else {}
    verified = {
        "passed": _are_within(errors, limits)
        and found == predicted
        and files["counted"] == files["predicted"],
        "limits": limits,
        "errors": errors,
        "counted": found,
        "predicted": predicted,
        "files": files,
    }
    document = {"status": "ok", "reason": "", "columns": {}, "verified": verified}
    write_json(spec.folder / "result.json", document)


def _resumed(
    case: Case, mesh: Mesh, recorder: Recorder, folder: Path, parallel: Trained
) -> tuple[tuple[bool, list[Part]], int]:
    """Go on under the plan from its own state, recording the load, and from the serial one; collective.

    Return whether the first ends with the very weights of the run that did not stop, the weights of the
    second, and the bytes that this rank read of the first.
    """
    if not parallel.saved:
        return (True, []), 0
    weights, read_bytes = _weights_from(parallel.saved[0], case, mesh, folder, recorder)
    same = all(
        np.array_equal(*pair) for pair in zip(_values(weights), _values(parallel.weights), strict=True)
    )
    by_one = folder / _ONE
    if mesh.world.rank == 0:
        trained(on_one_rank(case), SelfMesh(), Recorder([]), by_one)
    mesh.world.barrier()
    from_one, _ = _weights_from(saved_state.find(by_one / _STATE), case, mesh, folder)
    return (same, from_one), read_bytes


def _weights_from(
    state: Path, case: Case, mesh: Mesh, folder: Path, recorder: Recorder | None = None
) -> tuple[list[Part], int]:
    """Go on from a saved state to the last step; return weights, and the bytes of the load; collective."""
    recorder = recorder or Recorder([])
    train = replace(case.train, load=str(state), steps=case.train.steps - case.train.save.every)
    with _trainer(replace(case, train=train), mesh, Recorder([]), folder) as trainer:
        recorder.enabled = True
        with recorder.step(_NUMBERS[_LOADING]):
            figures = trainer.load(mesh, TensorFolder(state), broadcast=train.load_by == "broadcast")
        recorder.enabled = False
        for step in range(train.steps):
            trainer.step(step)
        return _parts(trainer.replicas.weights()), int(figures["load_read_bytes"])


def _values(parts: Sequence[Part]) -> Iterator[Array]:
    return (part.value for part in parts)


def _are_within(errors: Mapping[str, Sequence[Sequence[Any]]], limits: Mapping[str, float]) -> bool:
    return all(error <= limits[kind] for kind, rows in errors.items() for _, error in rows)


def rounding(case: Case) -> float:
    """Return how far the order of sums may move the first gradient in float64, relative to its largest value.

    A sum of n numbers is rounded n times. On the way to a gradient are sums over the vocabulary, over the
    tokens of the batch and, forward and backward through a layer, over both sides of every matrix, 8 times
    the width in norms and 4 times the sequence in attention.
    """
    model = case.model
    layer = 16 * model.width + (model.mlp_parts + 1) * model.mlp_features + 4 * model.sequence
    return EPS * (case.train.batch * model.sequence + model.vocabulary + model.layers * layer)


def amplified(whole: Case, serial: Trained, folder: Path) -> dict[str, float]:
    """Return how far rounding may move losses and weights of the serial program: as measured, not as summed.

    An error of a gradient near zero is lr / epsilon times as large in a weight of Adam. A gradient that has
    gone through n roundings, of both signs, is that of weights about the root of n roundings away; here every
    step gets such a one. More than half of the digits no limit lets go.
    """
    limit, random = rounding(whole), np.random.default_rng(1)
    error = (limit * EPS) ** 0.5
    with _trainer(whole, SelfMesh(), Recorder([]), folder) as trainer:
        for step in range(whole.train.steps):
            weights = [(value, value.copy()) for _, value in trainer.replicas.weights()]
            for value, before in weights:
                np.multiply(before, 1 + error * random.choice((-1, 1), value.shape), out=value)
            trainer.forward_backward(step)
            for value, before in weights:
                np.copyto(value, before)
            trainer.update(step)
        ((_, weight), *_) = _errors(_parts(trainer.replicas.weights()), serial.weights)
        moves = {"loss": _error(trainer.losses[:-1], serial.losses[:-1]), "weight": weight}
    return {kind: min(max(limit, move), EPS**0.5) for kind, move in moves.items()}


def on_one_rank(case: Case) -> Case:
    """Return the same training on one rank; a learning rate for the batch of a replica stays what it is."""
    lr_batch = case.train.lr_batch or case.train.batch // case.plan.batch_parts
    return replace(case, ranks=1, plan=Plan(), train=replace(case.train, lr_batch=lr_batch))


def free_routing(_: Sequence[RouterStats]) -> AbstractContextManager[None]:
    """Leave the choices to the routers."""
    return nullcontext()


def trained(
    case: Case, mesh: Mesh, recorder: Recorder, folder: Path, routing: Routing = free_routing
) -> Trained:
    """Train all steps of the case, with `recorder` recording all of them, and the first under `routing`."""
    with _trainer(case, mesh, recorder, folder) as trainer:
        recorder.enabled = True

        def save(step: int) -> tuple[Path, int]:
            recorder.enabled = False
            saved = trainer.save(case, mesh, folder / _STATE, step)
            recorder.enabled = True
            return saved

        return outcome(trainer, mesh, routing, save)


@contextmanager
def _trainer(case: Case, mesh: Mesh, recorder: Recorder, folder: Path) -> Iterator[Trainer[Recorder]]:
    """Return a trainer whose files are closed at the end."""
    batches = prepare(case.data, case.model, case.train, mesh, folder, recorder=recorder)
    trainer = make_trainer(case, mesh, batches, recorder)
    yield trainer
    batches.close()
    if trainer.storage is not None:
        trainer.storage.close()


def outcome(
    trainer: Trainer[Recorder],
    mesh: Mesh,
    routing: Routing = free_routing,
    save: Callable[[int], tuple[Path, int]] | None = None,
) -> Trained:
    """Run all steps of `trainer`, the first under `routing`, with `save` where the case saves the state.

    Gradients are those of the first step, before clipping, with what compression holds back: both programs
    have the very same weights there, so that a gradient wrong by a factor, which Adam does not feel, shows at
    once.
    """
    record = trainer.recorder
    enabled = record.enabled
    with routing(trainer.stage.routers):
        trainer.forward_backward(0)
    record.enabled = False
    gradients = _parts(trainer.replicas.gradients())
    record.enabled = enabled
    trainer.update(0)
    saved = None
    for step in range(1, trainer.train.steps):
        if save and step == trainer.train.save.every:
            saved = save(step - 1)
        trainer.step(step)
    losses = trainer.losses.copy()
    if trainer.validation:
        with record.step(_NUMBERS[_EVALUATION]):
            losses[-1] = trainer.evaluate()  # no step of these has it
    record.enabled = False
    weights = _parts(trainer.replicas.weights())
    mesh.world.all_reduce(losses)
    return Trained(losses=losses, gradients=gradients, weights=weights, saved=saved)


def _parts(held: Iterable[tuple[Param, Array]]) -> list[Part]:
    return [
        Part(name=(param.layer, param.name), shape=param.shape, cut=param.cut, value=value.copy())
        for param, value in held
    ]


def assembled(parts: Sequence[Part]) -> dict[Name, Array]:
    """Put the parts of all ranks together; what nobody holds is not a number."""
    wholes: dict[Name, Array] = {}
    for part in parts:
        shape = part.cut.whole if part.cut else part.shape
        whole = wholes.setdefault(part.name, np.full(shape, np.nan))
        if part.cut:
            part.cut.put(part.value, whole)
        else:
            whole[...] = part.value
    return wholes


def _errors(parts: Sequence[Part], serial: Sequence[Part]) -> list[list[Any]]:
    """Return name and largest error of every tensor, worst first."""
    found, expected = assembled(parts), assembled(serial)
    assert found.keys() == expected.keys(), "both programs have the same tensors"
    rows = [
        [f"{layer}/{name}", _error(found[layer, name], whole)] for (layer, name), whole in expected.items()
    ]
    return sorted(rows, key=lambda row: -row[1])


def _disagreements(parts: Sequence[Part]) -> list[list[Any]]:
    """Return name and largest difference between ranks of every tensor, worst first."""
    wholes, found = assembled(parts), dict[str, float]()
    for part in parts:
        whole, name = wholes[part.name], "/".join(map(str, part.name))
        other = part.cut.take(whole).reshape(part.shape) if part.cut else whole
        found[name] = max(found.get(name, 0.0), _error(part.value, other))
    return sorted(([name, error] for name, error in found.items()), key=lambda row: -row[1])


def _error(found: Array, expected: Array) -> float:
    """Return the largest difference, relative to the largest expected value; infinite if not a number."""
    scale = float(np.abs(expected).max()) or 1.0
    error = float(np.abs(found - expected).max()) / scale
    return error if np.isfinite(error) else float("inf")


def _counted(recorder: Recorder, mesh: Mesh, steps: int) -> list[Count]:
    """Count this rank's calls of a step, an evaluation and a load, from its recorded events."""
    counts: list[Count] = []
    for prefix, times in (("", steps), (_EVALUATION, 1), (_LOADING, 1)):
        recorded = _recorded(recorder, Kind.CALL, Kind.ROOT, Kind.POSTED, within=prefix)
        found = ((prefix + recorder.axes[axis], VERBS[verb], 1, size) for axis, verb, size in recorded)
        counts += _summed(mesh.world.rank, found, times)
    return counts


def _predicted(case: Case, state: Path | None) -> tuple[list[Count], list[Moved]]:
    """Predict the calls of all ranks in a step, an evaluation and a load, and what they read and write."""
    counts, moves = list[Count](), list[Moved]()
    for rank in range(case.ranks):
        moved = offloaded(case, rank)
        sizes = {"read": moved.read_bytes + prefetched_bytes(case, rank), "write": moved.written_bytes}
        made = {"": step_calls(case, rank)}
        if case.train.evaluate.every:
            made[_EVALUATION] = evaluation_calls(case, rank)
        if state:
            made[_LOADING], sizes["load"] = loading(case, rank, state)
            sizes["save"] = saved_bytes(case, rank)
        for prefix, calls in made.items():
            found = ((prefix + call.axis, call.verb, call.count, call.step_bytes) for call in calls)
            counts += _summed(rank, found, 1)
        moves += [(rank, verb, size) for verb, size in sizes.items() if size]
    return sorted(counts), sorted(moves)


def _summed(rank: int, found: Iterable[tuple[str, str, int, int]], steps: int) -> list[Count]:
    """Sum a rank's calls and their bytes by axis and verb; return those of a step."""
    counts: Counter[tuple[str, str]] = Counter()
    sent: Counter[tuple[str, str]] = Counter()
    for axis, verb, count, size in found:
        counts[axis, verb] += count
        sent[axis, verb] += size
    return [
        (rank, *key, _per_step(count, steps), _per_step(sent[key], steps)) for key, count in counts.items()
    ]


def _per_step(total: int, steps: int) -> float:
    """Return the part of one step: no whole number unless the steps together did so often the same."""
    return total / steps if total % steps else total // steps


def _moved(recorder: Recorder, mesh: Mesh, steps: int) -> list[Moved]:
    """Count what this rank moved between memory and its file in a step, from its recorded events."""
    moved: Counter[str] = Counter()
    for _, verb, size in _recorded(recorder, Kind.IO_SUBMITTED):
        moved[VERBS[verb]] += size
    return [(mesh.world.rank, verb, _per_step(size, steps)) for verb, size in moved.items()]


def _recorded(recorder: Recorder, *kinds: Kind, within: str = "") -> list[list[int]]:
    """Return axis, verb and bytes of all events of some kinds, in steps or in what is no step."""
    rows, apart = recorder.rows(), [*_NUMBERS.values()]
    within_steps = ~np.isin(rows["step"], apart)
    chosen = np.isin(rows["kind"], kinds) & (rows["step"] == _NUMBERS[within] if within else within_steps)
    events: list[list[int]] = np.stack(
        [rows[name][chosen] for name in ("axis", "verb", "bytes")], axis=1
    ).tolist()
    return events
