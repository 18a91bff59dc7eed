"""From validated fields to the case that a job gets."""

from __future__ import annotations

import difflib
import glob
import os
from dataclasses import replace
from pathlib import Path
from typing import cast

from pscale import config, lateness
from pscale.config import choices
from pscale.suite.schema.file import File
from pscale.suite.schema.launch import Inject, Jitter
from pscale.suite.schema.plan import Plan
from pscale.suite.schema.work import Block, Collectives, Gpt, Linear, LinearData, Moe, Text

_STDLIB = config.Data.source
_LINEAR_WEIGHTS = 5
_CONVERTED = {
    "time_limit",
    "hang_after",
    "memory_limit",
    "job_time_limit",
    "omp",
    "extra",
    "directives",
    "modules",
}


def build(file: File, folder: Path) -> config.Case:
    """Return the case of one point, without label; a relative `data.source` is looked for in `folder`."""
    launch = file.launch.model_dump(exclude=_CONVERTED)
    return config.Case(
        suite=file.name,
        label="",
        scaling=file.scaling,
        ranks=file.ranks,
        threads=file.threads,
        model=replace(_model(file.model), dtype=cast(choices.Dtype, file.precision.type)),
        data=_data(file, folder),
        train=_train(file),
        plan=_plan(file.plan),
        precision=config.Precision(**file.precision.model_dump(exclude={"type"})),
        timing=config.Timing(**file.timing.model_dump()),
        launch=config.Launch(
            **launch,
            time_limit_s=file.launch.time_limit,
            memory_limit_bytes=file.launch.memory_limit,
            hang_after_s=file.launch.hang_after,
            job_time_limit_s=file.launch.job_time_limit,
            extra=tuple(file.launch.extra),
            directives=tuple(file.launch.directives),
            modules=tuple(file.launch.modules),
            omp=config.Omp(**file.launch.omp.model_dump()),
        ),
        require=config.Require(**file.require.model_dump()),
        inject=_inject(file.inject),
        jitter=_jitter(file.jitter),
    )


def _plan(plan: Plan) -> config.Plan:
    fields = plan.model_dump(exclude={"bucket", "matrix", "offload_chunk"})
    fields |= {"bucket_bytes": plan.bucket, "offload_chunk_bytes": plan.offload_chunk}
    return config.Plan(**fields, matrix=config.Matrix(**plan.matrix.model_dump()))


def _model(model: Gpt | Moe | Block | Linear | Collectives) -> config.Model:
    fields = model.model_dump()
    if isinstance(model, Block):
        return config.Model(**fields, layers=1, vocabulary=0)
    if isinstance(model, Linear):
        return config.Model(**fields, layers=1, width=_LINEAR_WEIGHTS, heads=1, sequence=1, vocabulary=0)
    if isinstance(model, Collectives):
        return config.Model(
            kind="collectives",
            layers=1,
            width=1,
            heads=1,
            sequence=1,
            vocabulary=0,
            message_bytes=model.message,
            calls=model.calls,
        )
    return config.Model(**fields)


def _data(file: File, folder: Path) -> config.Data:
    data = file.data
    if isinstance(data, Text):
        return config.Data(**{**data.model_dump(), "source": _found(data.source, folder)})
    samples = data.samples if isinstance(data, LinearData) else 0
    return config.Data(kind="linear" if samples else "synthetic", source="", samples=samples)


def _found(source: str, folder: Path) -> str:
    """Make a path absolute, since the job may run elsewhere; a name that is nearly a known one stays."""
    source = os.path.expanduser(source)  # noqa: PTH111 - leaves the home of an unknown user as it is
    if source == _STDLIB or Path(source).is_absolute():
        return source
    path = (folder / source).absolute()
    if path.exists():
        return str(path)
    misspelt = difflib.get_close_matches(source, [_STDLIB], cutoff=0.8)
    return source if misspelt else str(Path(glob.escape(str(folder.absolute())), source))


def _train(file: File) -> config.Train:
    """Return the training with the batch of all ranks: a weak suite gives that of one replica."""
    fields = file.train.model_dump()
    replicas = file.plan.dp * file.plan.ep if file.scaling == "weak" else 1
    return config.Train(**{**fields, "batch": fields["batch"] * replicas})


def _inject(inject: Inject) -> lateness.Inject:
    """Return the delay; without one, nothing, so that healthy cases are equal."""
    fields = inject.model_dump(exclude={"delay"})
    return lateness.Inject(**fields, delay_s=inject.delay) if inject.delay else lateness.Inject()


def _jitter(jitter: Jitter) -> lateness.Jitter:
    fields = {**jitter.model_dump(exclude={"mean"}), "ranks": tuple(sorted({*jitter.ranks}))}
    return lateness.Jitter(**fields, mean_s=jitter.mean) if jitter.mean else lateness.Jitter()
