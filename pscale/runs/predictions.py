"""SUITE.prediction.json beside the folder of a suite's runs: what was predicted, when, from what, sealed.

Predictions are added and never changed, so that a later run of the suite can be held to those made before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pscale.errors import ResultsError
from pscale.runs import atomic_files
from pscale.runs.run_folders import prediction_file
from pscale.runs.run_shape import mismatch

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What was predicted of a case, by its content id, in seconds.

    The step of nine in ten launches lies from `low_s` to `high_s`; `losses_s` by kind add up to `step_s`;
    `quantiles_s` are of single steps. `inputs` are the hashes of what it was made from.
    """

    case: str
    label: str
    ranks: int
    made_unix_s: float
    step_s: float
    low_s: float
    high_s: float
    losses_s: Mapping[str, float]
    quantiles_s: Sequence[float]
    checked_ranks: int
    notes: Sequence[str]
    inputs: Mapping[str, str]

    @property
    def seal(self) -> str:
        """The hash of the content."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def add(folder: Path, predictions: Sequence[Predicted]) -> Path:
    """Add predictions to those of the suite whose runs are in a folder; returns the file."""
    file = prediction_file(folder)
    entries = [*_entries(file), *({**asdict(each), "seal": each.seal} for each in predictions)]
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write(file, json.dumps({"format": FORMAT, "predictions": entries}, indent=1) + "\n")
    return file


def read(folder: Path) -> list[Predicted]:
    """Return the predictions of the suite whose runs are in a folder, oldest first.

    Those that were changed since are left out. Raises ResultsError for a file that cannot be read.
    """
    found = []
    for entry in _entries(prediction_file(folder)):
        seal = entry.pop("seal", "")
        try:
            predicted = Predicted(**entry)
        except TypeError:
            continue
        if not mismatch(Predicted, entry) and predicted.step_s > 0 and predicted.seal == seal:
            found.append(predicted)
    return found


def _entries(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        document = atomic_files.read_json(file)
        if document["format"] != FORMAT:
            raise ResultsError(f"{file}: format {document['format']}; this pscale reads {FORMAT}")
        return [dict(entry) for entry in document["predictions"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{file}: predictions: cannot be read: {error}; move the file away to begin a new one"
        raise ResultsError(message) from error
