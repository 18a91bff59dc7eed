"""The state of a training in files: every rank writes what it owns, and any other plan can read it.

A saved state is a folder with a file of each rank and an index (`pscale.runs.tensor_files`): weights, what
the optimizer keeps, and the number of steps. All that is drawn at random, and the place in the data, follow
from seed and step. Tensors have global names, and their elements the numbers of the whole tensor.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pscale.config import Case, Model, Plan, from_dict, to_dict
from pscale.config.axes import ALL_AXES, TOKEN_AXES
from pscale.config.workload import flow
from pscale.errors import PscaleError, ResultsError
from pscale.mesh.axis import Axis, Mesh
from pscale.nn.param import share
from pscale.runs.tensor_files import INDEX, Elements, Tensor, TensorFolder, write, write_index

if TYPE_CHECKING:
    from pscale.parallel.zero import Replicas

_SAME: Mapping[str, Sequence[str]] = {  # in which trainings agree that go on with each other's state
    "model": [each.name for each in fields(Model) if each.name not in ("dtype", "attention", "op")],
    "train": ["optimizer", "batch", "seed", "evaluate"],  # what is held out is not trained on
    "data": ["kind", "source", "split", "samples"],
}
_ANY = {"steps", "warmup", "micro_batches", "save", "load", "load_by"}  # of one training, wherever it stops
LOADING = ("load_s", "load_read_s", "load_broadcast_s", "load_read_bytes", "load_broadcast_bytes")


def misfit(case: Case) -> str:
    """Return why the state that a case loads is not one of its training; empty if it is."""
    try:
        check_fits(saved_facts(Path(case.train.load)), case)
    except ResultsError as error:
        return str(error)
    return ""


def find(folder: Path) -> Path:
    """Return the folder of a saved state: `folder`, or the newest in it.

    Raises ResultsError where none is, or those of several trainings.
    """
    if (folder / INDEX).is_file():
        return folder
    states = {each.parent: TensorFolder(each.parent).facts for each in sorted(folder.glob(f"*/{INDEX}"))}
    if not states:
        raise ResultsError(f"{folder} has no saved state: no {INDEX} in it or in a folder of it")
    if len({facts["training"] for facts in states.values()}) > 1:
        named = ", ".join(f"{path.name} ({facts['case']['label']})" for path, facts in states.items())
        raise ResultsError(f"{folder} has the states of several trainings, name one of them: {named}")
    return max(states, key=lambda path: int(states[path]["step"]))


def saved_facts(folder: Path) -> dict[str, Any]:
    """Return what is known of the newest saved state in a folder, every file of which is there."""
    state = TensorFolder(find(folder))
    state.check()
    return {**state.facts, "folder": state.folder}


def check_fits(facts: Mapping[str, Any], case: Case) -> None:
    """Raise ResultsError unless a state is one of the same training: of its model, optimizer and data."""
    here, there = to_dict(case), to_dict(saved := from_dict(Case, facts["case"]))
    same = {**_SAME, "plan": _held_back(saved.plan)}
    differing = [
        f"{group}.{name} {flow(there[group][name])} there, {flow(here[group][name])} here"
        for group, names in same.items()
        for name in names
        if there[group][name] != here[group][name]
    ]
    if differing:
        lost = ["what it holds back of gradients has no meaning here"] * differing[-1].startswith("plan.")
        text = "; ".join((*differing[:3], *lost))
        raise ResultsError(f"{facts['folder']} is the state of another training: {text}; the same would work")


def _held_back(plan: Plan) -> Sequence[str]:
    """Return in what a plan agrees with those that go on with what its compression holds back, if anything.

    Every rank of a sum goes on with its own, and with factors of its part of a matrix.
    """
    if plan.compression == "none":
        return ()
    cut = ("tp",) if plan.sp or plan.compression == "powersgd" else ()
    return ("compression", "compression_rank", *TOKEN_AXES, "sp", *cut, "matrix")


def facts_of(case: Case, replicas: Replicas, step: int) -> dict[str, Any]:
    """Return what an index says of the training: which it is, and how far it has come."""
    document = to_dict(case)
    train = {name: value for name, value in document["train"].items() if name not in _ANY}
    data = {name: document["data"][name] for name in _SAME["data"]}
    content = json.dumps([document["model"], data, train], sort_keys=True)
    training = hashlib.sha256(content.encode()).hexdigest()[:10]
    return {"training": training, "step": step, "updates": replicas.updates, "case": document}


def owned(replicas: Replicas) -> Iterator[Tensor]:
    """Yield what this rank writes: its share of what it and others have alike, all of the rest."""
    for (name, elements, memory), copy, copies in replicas.state():
        if (here := share(elements.size, copies, copy)).stop > here.start:
            yield Tensor(name, elements.part(here), memory[here])


def save(replicas: Replicas, mesh: Mesh, folder: Path, facts: Mapping[str, Any]) -> tuple[Path, int]:
    """Write a state in place of older ones of its training; return its folder, this rank's bytes. Collective.

    The folder gets its name when all files are on disk, and only then the older one goes.
    """
    world, token = mesh.world, np.array([os.getpid()])
    world.broadcast(token)
    target = folder / f"{facts['training']}-step-{facts['step']}"
    partial, former = (folder / f".{target.name}.{token[0]}.{kind}" for kind in ("part", "old"))
    try:
        if world.rank == 0:
            partial.mkdir(parents=True)
        world.barrier()
        pieces = write(partial / f"rank-{world.rank}.safetensors", lambda: owned(replicas))
        everyone = world.gather_objects(pieces)
        if world.rank == 0:
            write_index(partial, facts, (piece for rank in everyone for piece in rank))
            if target.exists():
                target.rename(former)
            partial.rename(target)
            for older in (*folder.glob(f"{facts['training']}-step-*"), former):
                if older != target:
                    shutil.rmtree(older, ignore_errors=True)
        world.barrier()
    except OSError as error:
        raise PscaleError(f"cannot save to {str(folder)!r}: {error.strerror}") from error
    return target, sum(piece.elements.size * np.dtype(piece.dtype).itemsize for _, piece in pieces)


def load(replicas: Replicas, mesh: Mesh, state: TensorFolder, *, broadcast: bool = False) -> dict[str, float]:
    """Replace the state by a saved one; return this rank's figures of LOADING. Collective.

    Every rank reads its part, or the first reads all and sends it to all. Of a state without what compression
    holds back a training goes on with nothing held back.
    """
    world, figures = mesh.axis(*ALL_AXES), dict.fromkeys(LOADING, 0.0)
    held_back = state.facts["case"]["plan"]["compression"] != "none"
    world.barrier()
    start = perf_counter()
    if broadcast:
        _load_by_broadcast(replicas, world, state, figures, held_back=held_back)
    for name, elements, memory in (held.tensor for held in replicas.state(changes=True, held_back=held_back)):
        if not broadcast:  # else it is there, and has to be told to those who keep a coarser copy
            state.fill(name, elements, memory)
    replicas.updates = int(state.facts["updates"])
    figures["load_read_s"] = perf_counter() - start - figures["load_broadcast_s"]
    world.barrier()
    return figures | {"load_s": perf_counter() - start, "load_read_bytes": state.read_bytes}


def _load_by_broadcast(
    replicas: Replicas, world: Axis, state: TensorFolder, figures: dict[str, float], *, held_back: bool
) -> None:
    """Read every tensor on the first rank and send it to all."""
    held: dict[str, list[Tensor]] = {}
    for each in replicas.state(held_back=held_back):
        held.setdefault(each.tensor.name, []).append(each.tensor)
    if lacking := held.keys() - {*state.names}:
        raise ResultsError(f"{state.folder} has no tensor {min(lacking)}")
    for name in state.names:
        whole = state.whole(name)
        if world.rank == 0:
            state.fill(name, Elements(((0, whole.size, 1),), 0, whole.size), whole)
            figures["load_broadcast_bytes"] += whole.nbytes
        start = perf_counter()
        world.broadcast(whole)
        figures["load_broadcast_s"] += perf_counter() - start
        for tensor in held.get(name, ()):
            tensor.memory[...] = whole[tensor.elements.numbers(slice(0, tensor.elements.size))]
