"""A prediction as it is kept, for later runs to be held to."""

from __future__ import annotations

import hashlib
import time

import numpy as np

from pscale import __version__
from pscale.predict.engine import Prediction
from pscale.runs.predictions import Predicted

_QUANTILES = 41


def recorded(prediction: Prediction, profile: str, network: str) -> Predicted:
    """Return what is kept of a prediction; `profile` and `network` are hashes, empty without a network."""
    case, step_s = prediction.case, prediction.step_s
    return Predicted(
        case=case.id,
        label=case.label,
        ranks=case.ranks,
        made_unix_s=time.time(),
        step_s=step_s.value,
        low_s=step_s.low,
        high_s=step_s.high,
        losses_s=dict(prediction.losses),
        quantiles_s=np.quantile(prediction.draws, np.linspace(0, 1, _QUANTILES)).tolist(),
        checked_ranks=prediction.checked_ranks,
        notes=list(prediction.notes),
        inputs={"case": case.id, "profile": profile, "network": network, "pscale": __version__},
    )


def hash_of(text: str) -> str:
    """Return twelve hexadecimal digits of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
