"""A step on paper: what layers take from the pool of activations and give back, without doing anything.

Each class has the name of the layer that it stands for and moves sheets as that one moves arrays; tests hold
the one to the other. Sizes are numbers of elements, of one micro-batch and one rank.
"""

from pscale.nn.rehearsal.attention import Attention, Heads
from pscale.nn.rehearsal.experts import Experts, Mixture
from pscale.nn.rehearsal.layers import BiasGelu, LayerNorm, Linear, Loss, Positions, Tokens
from pscale.nn.rehearsal.recompute import Recomputed, remember
from pscale.nn.rehearsal.step import Chain, First, Forgetful, Residual, Step, Weight

__all__ = [
    "Attention",
    "BiasGelu",
    "Chain",
    "Experts",
    "First",
    "Forgetful",
    "Heads",
    "LayerNorm",
    "Linear",
    "Loss",
    "Mixture",
    "Positions",
    "Recomputed",
    "Residual",
    "Step",
    "Tokens",
    "Weight",
    "remember",
]
