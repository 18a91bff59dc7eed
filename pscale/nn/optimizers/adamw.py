"""AdamW (Loshchilov and Hutter, 2019): Adam beside which weights decay: w -= lr decay w."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pscale.nn.optimizers import adam
from pscale.nn.optimizers.base import OnePass

RULE = replace(
    adam.RULE, make=partial(OnePass, adam.update, decays=True), hyperparameters=adam.MOMENTS | adam.DECAY
)
