"""Text that a saved model writes, byte by byte, on one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pscale.config import Case, Plan, from_dict
from pscale.data.corpus import SEPARATOR
from pscale.errors import UsageError
from pscale.mesh.alone import SelfMesh
from pscale.nn.offload.activations import ActivationOffloader
from pscale.parallel import saved_state
from pscale.parallel.zero import Replicas
from pscale.runs.tensor_files import TensorFolder
from pscale.training.build import Passes, build

_BYTES = 256  # tokens of text


def sample(folder: Path, tokens: int, *, prompt: str, temperature: float, seed: int) -> str:
    """Return the prompt, and as many bytes as `tokens` that the model of a saved state adds to it.

    Each is drawn from what the model makes of those before it, a sequence at most.
    Raises UsageError for a model of other data than text, ResultsError for files that are damaged.
    """
    facts = saved_state.saved_facts(folder)
    saved = from_dict(Case, facts["case"])
    case = replace(saved, ranks=1, plan=Plan(), model=replace(saved.model, dropout=0.0))
    if case.data.kind != "text":
        raise UsageError(
            f"{facts['folder']} has learned {case.data.kind} data; a model of text can be sampled"
        )
    mesh, random = SelfMesh(), np.random.default_rng(seed)
    stage = build(case.model, case.plan, mesh)
    replicas = Replicas([unit.layer.params for unit in stage.units], mesh, case)
    saved_state.load(replicas, mesh, TensorFolder(facts["folder"]))
    passes = Passes(stage=stage, replicas=replicas, offloader=ActivationOffloader(stage.buffers, None))
    written = [SEPARATOR, *prompt.encode()]
    for _ in range(tokens):
        seen = written[-case.model.sequence :]
        window = np.zeros((1, case.model.sequence), np.intp)  # what follows is masked: attention is causal
        window[0, : len(seen)] = seen
        logits = passes.forward(0, window)[0][0, len(seen) - 1, :_BYTES].astype(np.float64)
        if temperature:
            chances = np.exp((logits - logits.max()) / temperature)
            written.append(int(random.choice(_BYTES, p=chances / chances.sum())))
        else:
            written.append(int(logits.argmax()))
    text = bytes(written[1:]).decode(errors="replace")
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
