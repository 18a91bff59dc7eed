"""AdamW (Loshchilov and Hutter, 2019): Adam beside which weights decay by themselves."""

from __future__ import annotations

from dataclasses import replace

from pscale.nn.optimizers import adam


class AdamW(adam.Adam):
    """Adam, and w -= lr decay w of those weights that decay."""

    decays = True


RULE = replace(adam.RULE, make=AdamW, hyperparameters=adam.MOMENTS | adam.DECAY)
