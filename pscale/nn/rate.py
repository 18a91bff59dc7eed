"""The learning rate of a step: for a larger batch, after a warm-up, along a cosine."""

from __future__ import annotations

import math

from pscale.config import Train


def learning_rate(train: Train, step: int, replicas: int) -> float:
    """Return the rate of step `step`, counted from 0, on `replicas` that share the batch.

    It grows to `lr`, scaled by the batch, over the first `lr_warmup` steps; along a cosine it then falls to
    the share `lr_final` in the last step, where it stays.
    """
    reference = train.lr_batch or train.batch / replicas
    factor = train.batch / reference
    peak = train.lr * {"none": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[train.lr_scaling]
    if step < train.lr_warmup:
        return peak * (step + 1) / train.lr_warmup
    if train.lr_schedule == "constant":
        return peak
    last = train.warmup + train.steps - 1 - train.lr_warmup
    gone = min(1.0, (step - train.lr_warmup) / last) if last else 1.0
    return peak * (train.lr_final + (1 - train.lr_final) * (1 + math.cos(math.pi * gone)) / 2)
