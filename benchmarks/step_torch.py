"""The process of step.py that runs PyTorch's step: the same model, eager, fused attention, fused AdamW."""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, model: dict[str, Any]):
        super().__init__()
        width = model["width"]
        self.token = nn.Embedding(model["vocabulary"], width)
        self.position = nn.Embedding(model["sequence"], width)
        self.blocks = nn.ModuleList(Block(width, model["heads"]) for _ in range(model["layers"]))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, model["vocabulary"], bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def by_name(self) -> dict[str, tuple[nn.Parameter, bool]]:
        """Return the parameters under pscale's names, and whether pscale has the transpose."""
        named = {
            "embedding/token": (self.token.weight, False),
            "embedding/position": (self.position.weight, False),
            "head/norm.gain": (self.norm.weight, False),
            "head/norm.bias": (self.norm.bias, False),
            "head/head.weight": (self.head.weight, True),
        }
        for index, block in enumerate(self.blocks):
            for name, norm in (("attention.norm", block.norm1), ("mlp.norm", block.norm2)):
                named[f"block.{index}/{name}.gain"] = (norm.weight, False)
                named[f"block.{index}/{name}.bias"] = (norm.bias, False)
            for name in ("qkv", "projection", "up", "down"):
                linear = getattr(block, name)
                named[f"block.{index}/{name}.weight"] = (linear.weight, True)
                named[f"block.{index}/{name}.bias"] = (linear.bias, False)
        return named


def loss_of(gpt: Gpt, x: Tensor, targets: Tensor) -> Tensor:
    logits = gpt(x)
    return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def gradients(model: dict[str, Any], start: str, out: str) -> None:
    """Read weights with data, write the loss with all gradients."""
    gpt = Gpt(model).to(getattr(torch, model["dtype"]))
    named = gpt.by_name()
    with np.load(start) as given, torch.no_grad():
        for name, (parameter, transposed) in named.items():
            parameter.copy_(torch.from_numpy(given[name].T if transposed else given[name]))
        x, targets = torch.from_numpy(given["x"]), torch.from_numpy(given["targets"])
    loss = loss_of(gpt, x, targets)
    loss.backward()
    grads = {name: (p.grad.T if transposed else p.grad).numpy() for name, (p, transposed) in named.items()}
    np.savez(out, allow_pickle=False, loss=loss.item(), **grads)


class Runner:
    """A model with data, ready to step."""

    def __init__(self, model: dict[str, Any], batch: int):
        torch.manual_seed(1)
        self.gpt = Gpt(model).to(getattr(torch, model["dtype"]))
        self.optimizer = torch.optim.AdamW(self.gpt.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
        self.x, self.targets = torch.randint(0, model["vocabulary"], (2, batch, model["sequence"]))

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = loss_of(self.gpt, self.x, self.targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.gpt.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def main() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    runner: Runner | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        match request:
            case {"do": "gradients", "model": model, "start": start, "out": out}:
                gradients(model, start, out)
            case {"do": "prepare", "model": model, "batch": batch}:
                runner = Runner(model, batch)
            case {"do": "step"}:
                assert runner is not None
                begin, begin_cpu = perf_counter(), process_time()
                loss = runner.step()
                answer = {"s": perf_counter() - begin, "cpu_s": process_time() - begin_cpu, "loss": loss}
            case {"do": "about"}:
                answer = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
