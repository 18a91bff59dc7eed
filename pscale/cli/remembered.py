"""Predictions of cases, kept in the user's cache: the dry run of a deep model takes a tenth of a second."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pscale import __version__
from pscale.config import Case, from_dict, to_dict
from pscale.parallel.replicas import Call
from pscale.runs import atomic_files
from pscale.training.prediction import Prediction, fullest_rank, predict

_SOURCES = ("config", "data", "mesh", "nn", "parallel", "training")  # what a prediction comes from
_MOST_BYTES = 8 << 20  # of a file of predictions, which then begins anew


def of_first_rank(case: Case) -> Prediction:
    """Predict what the first rank computes, sends and holds."""
    return _remembered(case, "first")


def of_fullest_rank(case: Case) -> Prediction:
    """Predict what the rank computes, sends and holds that holds most."""
    return _remembered(case, "fullest")


def _remembered(case: Case, which: str) -> Prediction:
    content = f"{which} {case.ranks} {case.model} {case.train} {case.plan} {case.precision}"
    key = hashlib.sha256(content.encode()).hexdigest()[:24]
    if text := _known().get(key):
        return _prediction(json.loads(text))
    found = predict(case, fullest_rank(case) if which == "fullest" else 0)
    _keep(key, json.dumps(to_dict(found)))
    return found


def _prediction(document: dict[str, Any]) -> Prediction:
    calls = tuple(from_dict(Call, call) for call in document["calls"])
    return from_dict(Prediction, {**document, "calls": calls})


@cache
def _file() -> Path:
    """Return the file of predictions that this very program made, whatever has been edited since."""
    package, digest = Path(__file__).parents[1], hashlib.sha256(__version__.encode())
    for name in _SOURCES:
        for path in sorted((package / name).rglob("*.py")):
            known = path.stat()
            digest.update(f"{path} {known.st_size} {known.st_mtime_ns}\n".encode())
    user = atomic_files.user_folder("XDG_CACHE_HOME", ".cache")
    return user / "pscale" / f"predictions-{digest.hexdigest()[:16]}.jsonl"


@cache
def _known() -> dict[str, str]:
    """Return the predictions on disk, as text, by their keys; a line that was cut off is none."""
    with suppress(OSError):
        lines = _file().read_text(encoding="ascii").splitlines()
        return {key: text for key, _, text in (line.partition(" ") for line in lines) if text.endswith("}")}
    return {}


def _keep(key: str, text: str) -> None:
    """Add a prediction to those on disk, where that can be; those of an edited program go."""
    _known()[key] = text
    with suppress(OSError):
        path = _file()
        if not path.exists() or path.stat().st_size > _MOST_BYTES:
            path.parent.mkdir(parents=True, exist_ok=True)
            for old in path.parent.glob("predictions-*.jsonl"):
                old.unlink()
        with path.open("ab", buffering=0) as file:  # one write: lines of two processes do not mix
            file.write(f"{key} {text}\n".encode("ascii"))
