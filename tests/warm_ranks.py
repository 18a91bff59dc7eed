"""Cases under a real MPI at a small part of a launch's time: ranks that stay and take one after another."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from patience import LIMIT_S

from pscale.cli.verify import proof, reason
from pscale.config import Case, Launch, Plan, to_dict
from pscale.config.training import is_16_bit
from pscale.launch import launcher, machine
from pscale.launch.command import command
from pscale.mesh.alone import SelfMesh
from pscale.nn.dtypes import tolerance
from pscale.worker.recorder import Recorder
from pscale.worker.verify import on_one_rank, trained

_WORKER = Path(__file__).parent / "mpi" / "warm_worker.py"
_STACKS_S = 2  # until ranks have said where they are
_STEPS = 2


class WarmRanks:
    """`ranks` processes of MPI, started when a case comes, and again after one that ended them."""

    def __init__(self, ranks: int):
        self._ranks, self._process, self._count = ranks, None, 0

    def run(self, case: Case, task: str) -> tuple[dict, str]:
        """Return what a launch of a case leaves in result.json, and why it did not end well, or nothing."""
        if self._process is None:
            self._start()
        folder = self._folder / f"case-{self._count}"
        (folder / "data").mkdir(parents=True)
        order = self._folder / str(self._count)
        document = {"task": task, "case": to_dict(case), "repeat": 0, "launched_unix_s": time.time()}
        (folder / "case.json").write_text(json.dumps(document | {"data": str(folder / "data")}))
        (folder / "order").write_text(f"{case.ranks} {folder}")
        (folder / "order").rename(order)
        self._count += 1
        deadline = time.monotonic() + LIMIT_S
        while not (done := Path(f"{order}.done").exists()) and self._process.poll() is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.002)
        if not done:
            return {}, self._ended(folder)
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        shutil.rmtree(folder)
        return result, ""

    def _start(self) -> None:
        self._folder, self._count = Path(tempfile.mkdtemp(prefix="warm-")), 0
        launch = Launch(bind="none", oversubscribe=True)
        order = command(
            Case(suite="s", label="l", ranks=self._ranks, plan=Plan(dp=self._ranks), launch=launch),
            launcher.find(),
            (sys.executable, "-P", str(_WORKER), str(self._folder), str(os.getpid())),
            machine.inspect(),
            environ=os.environ,
            root=os.geteuid() == 0,
        )
        with (self._folder / "log").open("w") as log:
            self._process = subprocess.Popen(order.argv, env=order.env, stdout=log, stderr=log)

    def _ended(self, folder: Path) -> str:
        """Return why a case has ended the ranks, or where they stay; then there are none."""
        reason = "a rank died"
        if self._process.poll() is None:
            reason = f"no end within {LIMIT_S} s"
            for process in self.processes():
                process.send_signal(signal.SIGUSR1)
            time.sleep(_STACKS_S)
        reasons = [json.loads(path.read_text())["message"] for path in sorted(folder.glob("failure-*.json"))]
        said = (self._folder / "log").read_text(errors="replace")[-8000:]
        self.close()
        return "\n".join([reason, *reasons, said])

    def processes(self) -> list[psutil.Process]:
        """Return those of the ranks."""
        started = psutil.Process(self._process.pid).children(recursive=True)
        return [child for child in started if str(_WORKER) in child.cmdline() and "python" in child.name()]

    def close(self) -> None:
        """End the processes."""
        if self._process is None:
            return
        if self._process.poll() is None:
            started = psutil.Process(self._process.pid).children(recursive=True)
            for process in (*started, self._process):
                process.kill()
            self._process.wait()
        self._process = None
        shutil.rmtree(self._folder)


def failure_of(case: Case, ranks: WarmRanks, folder: Path) -> str:
    """Return what is wrong when a case runs; nothing where it is the serial run, or where that diverges.

    With numbers of 16 bits it is measured too: its losses have to be near those of the serial run in float32,
    with a rate at which that converges.
    """
    proved = proof(case)
    save = replace(proved.train.save, every=min(proved.train.save.every, _STEPS - 1))
    proved = replace(proved, train=replace(proved.train, steps=_STEPS, save=save))
    result, why = ranks.run(proved, "verify")
    if why:
        return why
    if not result["verified"]["passed"]:
        serial = trained(on_one_rank(proved), SelfMesh(), Recorder([]), folder)
        return reason(result["verified"]) if np.isfinite(serial.losses).all() else ""
    if not is_16_bit(case.model.dtype) or case.model.kind == "collectives":  # which has no loss
        return ""
    train = replace(
        proved.train, warmup=min(case.train.warmup, 1), lr_scaling="none", lr=min(case.train.lr, 1e-3)
    )
    measured = replace(proved, train=train)
    result, why = ranks.run(measured, "measure")
    if why or result["status"] != "ok":
        return f"measured: {why or result['reason']}"
    in_float32 = on_one_rank(replace(measured, model=replace(case.model, dtype="float32")))
    in_float32 = replace(
        in_float32, train=replace(in_float32.train, steps=train.warmup + train.steps, warmup=0)
    )
    losses, limit = np.array(result["columns"]["losses"]), tolerance(case.model.dtype)
    near = trained(in_float32, SelfMesh(), Recorder([]), folder).losses[: len(losses)]
    wrong = not (np.abs(losses - near) <= limit * np.abs(near)).all()
    return f"losses {losses}, in float32 {near}" if wrong else ""
