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


def norm_of(model: dict[str, Any]) -> nn.Module:
    if model["norm"] == "rmsnorm":
        return nn.RMSNorm(model["width"], eps=1e-5)
    return nn.LayerNorm(model["width"], bias=model["bias"])


def turned(x: Tensor, base: float) -> Tensor:
    """Return heads (B, H, T, width) turned by their positions."""
    half, kind = x.shape[-1] // 2, torch.float64
    wave = base ** -(torch.arange(half, dtype=kind) / half)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=kind), wave)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.split(half, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


class Block(nn.Module):
    def __init__(self, model: dict[str, Any]):
        super().__init__()
        width, bias = model["width"], model["bias"]
        self.turns, self.gated = model["positions"] == "rope", model["mlp"] == "swiglu"
        self.base = model["rope_base"]
        self.heads = model["kv_heads"] or model["heads"]
        self.queries = model["heads"] // self.heads
        inside = model["mlp_width"] or 4 * width
        self.norm1, self.norm2 = norm_of(model), norm_of(model)
        self.qkv = nn.Linear(width, width + 2 * width // self.queries, bias=bias)
        self.projection = nn.Linear(width, width, bias=bias)
        self.up, self.down = (
            nn.Linear(width, inside * (1 + self.gated), bias=bias),
            nn.Linear(inside, width, bias=bias),
        )

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        heads = self.qkv(self.norm1(x)).view(B, T, self.queries + 2, self.heads, -1)
        *queries, k, v = heads.permute(2, 0, 3, 1, 4)
        q = torch.stack(queries, dim=2).flatten(1, 2)  # those of a key together
        if self.turns:
            q, k = turned(q, self.base), turned(k, self.base)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.queries > 1)
        x = x + self.projection(y.transpose(1, 2).reshape(B, T, C))
        inside = self.up(self.norm2(x))
        if self.gated:
            gate, up = inside.chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)
        return x + self.down(functional.gelu(inside, approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, model: dict[str, Any]):
        super().__init__()
        width = model["width"]
        self.token = nn.Embedding(model["vocabulary"], width)
        self.position = nn.Embedding(model["sequence"], width) if model["positions"] == "learned" else None
        self.blocks = nn.ModuleList(Block(model) for _ in range(model["layers"]))
        self.norm = norm_of(model)
        self.head = nn.Linear(width, model["vocabulary"], bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        if self.position is not None:
            x = x + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def by_name(self) -> dict[str, tuple[nn.Parameter, bool]]:
        """Return the parameters under pscale's names, and whether pscale has the transpose."""
        named = {
            "embedding/token": (self.token.weight, False),
            "embedding/position": (getattr(self.position, "weight", None), False),
            "head/norm.gain": (self.norm.weight, False),
            "head/norm.bias": (getattr(self.norm, "bias", None), False),
            "head/head.weight": (self.head.weight, True),
        }
        for index, block in enumerate(self.blocks):
            for name, norm in (("attention.norm", block.norm1), ("mlp.norm", block.norm2)):
                named[f"block.{index}/{name}.gain"] = (norm.weight, False)
                named[f"block.{index}/{name}.bias"] = (getattr(norm, "bias", None), False)
            for name in ("qkv", "projection", "up", "down"):
                linear = getattr(block, name)
                named[f"block.{index}/{name}.weight"] = (linear.weight, True)
                named[f"block.{index}/{name}.bias"] = (linear.bias, False)
        return {name: held for name, held in named.items() if held[0] is not None}


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
