from collections.abc import Callable
from pathlib import Path

import pytest

from pscale.config import Case
from pscale.suite.expand import expand
from pscale.suite.load import Suite, load_suite

VALID = """\
name: weak
title: Weak scaling
scaling: weak
model: {kind: gpt, layers: 2, width: 64, heads: 4, sequence: 32, vocabulary: 256}
data: {kind: text, source: python-stdlib}
train:
  batch: 4
  lr: 1.0e-3
  clip: 1.0
  steps: 10
plan: {dp: ranks, bucket: 4MiB}
sweep:
  ranks: [1, 2, 4]
  threads: [1]
exclude: ["ranks * threads > cores"]
repeat: 2
launch: {bind: core, time_limit: 10m}
expect: [{metric: efficiency, where: "ranks <= 2", at_least: 0.85}]
"""
MACHINE = {"cores": 4.0, "memory_gib": 16.0, "nodes": 1.0}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write the valid suite with some of its text replaced."""

    def write_changed(*changes: tuple[str, str], name: str = "weak.yaml") -> Path:
        text = VALID
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_changed


@pytest.fixture
def suite(write: Callable[..., Path]) -> Callable[..., Suite]:
    """Load the valid suite with some of its text replaced."""
    return lambda *changes, overrides=(): load_suite(write(*changes), overrides)


@pytest.fixture
def cases(suite: Callable[..., Suite]) -> Callable[..., list[Case]]:
    """Expand the valid suite with some of its text replaced, on a machine of four cores."""

    def expand_changed(*changes: tuple[str, str], only: str | None = None, cores: float = 4.0) -> list[Case]:
        return list(expand(suite(*changes), {**MACHINE, "cores": cores}, only).cases)

    return expand_changed
