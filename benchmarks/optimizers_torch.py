"""The process of optimizers.py that runs PyTorch's optimizers, in their fastest form."""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter
from typing import Any

import numpy as np
import torch

MAKERS: dict[str, tuple[Any, dict[str, Any]]] = {  # with the settings of optimizers_pscale.py
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "adam": (torch.optim.Adam, {"lr": 1e-3, "betas": (0.9, 0.95), "fused": True}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "betas": (0.9, 0.95), "fused": True}),
    "adafactor": (torch.optim.Adafactor, {"lr": 1e-2, "eps": (1e-15, 1e-3)}),
}
DECAYS = {"adamw": 0.1, "adafactor": 0.1}
VOCABULARY = SEQUENCE = 256


def shapes(layers: int, width: int) -> dict[str, tuple[int, ...]]:
    """Return the parameters of pscale's GPT in its order."""
    h = width
    found: dict[str, tuple[int, ...]] = {
        "embedding/token": (VOCABULARY, h),
        "embedding/position": (SEQUENCE, h),
    }
    for layer in range(layers):
        block = {
            "attention.norm.gain": (h,),
            "attention.norm.bias": (h,),
            "qkv.weight": (h, 3 * h),
            "qkv.bias": (3 * h,),
            "projection.weight": (h, h),
            "projection.bias": (h,),
            "mlp.norm.gain": (h,),
            "mlp.norm.bias": (h,),
            "up.weight": (h, 4 * h),
            "up.bias": (4 * h,),
            "down.weight": (4 * h, h),
            "down.bias": (h,),
        }
        found |= {f"block.{layer}/{name}": shape for name, shape in block.items()}
    return found | {"head/norm.gain": (h,), "head/norm.bias": (h,), "head/head.weight": (h, VOCABULARY)}


class Runner:
    """The same tensors, with the same numbers."""

    def __init__(self, optimizer: str, layers: int, width: int, dtype: str):
        kind = getattr(torch, dtype)
        sizes = {name: int(np.prod(shape)) for name, shape in shapes(layers, width).items()}
        self.random, self.sizes = np.random.default_rng(1), sizes
        drawn = self.drawn(0.1)
        self.params = {
            name: torch.nn.Parameter(torch.tensor(drawn[name], dtype=kind).reshape(shape))
            for name, shape in shapes(layers, width).items()
        }
        make, settings = MAKERS[optimizer]
        decay = DECAYS.get(optimizer, 0.0)
        groups = [
            {"params": [p for p in self.params.values() if (p.dim() > 1) == decays], "weight_decay": amount}
            for decays, amount in ((True, decay), (False, 0.0))
        ]
        self.optimizer = make(groups, **settings)
        self.draw()

    def drawn(self, deviation: float) -> dict[str, Any]:
        flat = deviation * self.random.normal(size=sum(self.sizes.values()))
        return dict(zip(self.sizes, np.split(flat, np.cumsum(list(self.sizes.values()))[:-1]), strict=True))

    def draw(self) -> None:
        drawn = self.drawn(0.01)
        for name, param in self.params.items():
            param.grad = torch.tensor(drawn[name], dtype=param.dtype).reshape(param.shape)


def main() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    runner: Runner | None = None
    for line in sys.stdin:
        request, answer = json.loads(line), {}
        match request.pop("do"):
            case "train":
                steps, out = request.pop("steps"), request.pop("out")
                runner = Runner(**request)
                for _ in range(steps):
                    runner.optimizer.step()
                    runner.draw()
                np.savez(out, **{name: param.detach().numpy() for name, param in runner.params.items()})
            case "prepare":
                runner = Runner(**request)
            case "step":
                assert runner is not None
                begin = perf_counter()
                runner.optimizer.step()
                answer = {"s": perf_counter() - begin}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
