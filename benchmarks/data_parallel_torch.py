"""A rank of data_parallel.py, RANK of WORLD_SIZE, with PyTorch: `data_parallel_torch.py FOLDER`."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Client
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from step_torch import Gpt, loss_of
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Trained:
    """A model on all ranks, whole (`ddp`) or in shards (`fsdp2`), with random data, ready to step."""

    def __init__(
        self, way: str, model: dict[str, Any], batch: int, start: Path, *, clip: float | None, epsilon: float
    ):
        torch.manual_seed(1)
        gpt, self.clip = Gpt(model).to(getattr(torch, model["dtype"])), clip
        with np.load(start) as given, torch.no_grad():
            for name, (parameter, transposed) in gpt.by_name().items():
                parameter.copy_(torch.from_numpy(given[name].T if transposed else given[name]))
        if way == "ddp":
            self.gpt: Any = nn.parallel.DistributedDataParallel(gpt)
        else:
            mesh = init_device_mesh("cpu", (RANKS,))
            for block in gpt.blocks:
                fully_shard(block, mesh=mesh)
            self.gpt = fully_shard(gpt, mesh=mesh)
        decayed, others = [], []  # matrices of products, as in minGPT; all else
        for name, each in self.gpt.named_parameters():
            table = name.endswith(("token.weight", "position.weight"))
            (decayed if each.dim() > 1 and not table else others).append(each)
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=epsilon, fused=True)
        self.data = torch.randint(0, model["vocabulary"], (2, batch, model["sequence"]))

    def step(self, data: torch.Tensor | None = None) -> float:
        x, targets = self.data if data is None else data
        self.optimizer.zero_grad()
        loss = loss_of(self.gpt, x, targets)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.gpt.parameters(), self.clip)
        self.optimizer.step()
        return loss.item()


def main(folder: Path) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {RANK % (os.cpu_count() or 1)})
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=RANK, world_size=RANKS)
    contestants: dict[str, Trained] = {}
    with Client(str(folder / "ranks")) as parent:
        parent.send(("torch", RANK))
        while True:
            try:
                request = parent.recv()
            except EOFError:
                break
            answer: object = None
            match request:
                case {"do": "prepare", "way": way, **settings}:
                    contestants[way] = Trained(way, start=folder / "start.npz", **settings)
                case {"do": "prove", "way": way}:
                    steps = torch.from_numpy(np.load(folder / f"data-{RANK}.npy"))
                    answer = [contestants[way].step(data) / RANKS for data in steps]
                case {"do": "step", "way": way}:
                    contestants[way].step()
                    distributed.barrier()
                    begin = perf_counter()
                    contestants[way].step()
                    answer = perf_counter() - begin
                case {"do": "about"}:
                    answer = str(torch.__version__)
            parent.send(answer)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
