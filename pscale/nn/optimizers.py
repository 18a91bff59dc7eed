"""The table of optimizers."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Train
from pscale.nn.adafactor import Adafactor
from pscale.nn.lamb import Lamb
from pscale.nn.optim import ALONE, Adam, Elsewhere, Flat, Optimizer, Sgd


def make_optimizer(train: Train, flats: Sequence[Flat], elsewhere: Elsewhere = ALONE) -> Optimizer:
    """Return the optimizer that `train` names, for tensors of which `elsewhere` has the rest."""
    match train.optimizer:
        case "sgd":
            return Sgd(flats, train)
        case "adam":
            return Adam(flats, train, decay=0.0)
        case "adamw":
            return Adam(flats, train, decay=train.weight_decay)
        case "lamb":
            return Lamb(flats, train, elsewhere)
        case "adafactor":
            return Adafactor(flats, train, elsewhere)
