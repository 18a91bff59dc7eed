"""Collectives, threads, experts, fitted laws and other networks, where a run has them."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.report import grids_models, grids_network, grids_plans
from pscale.report.grids_compression import compression
from pscale.report.grids_offload import offload
from pscale.report.grids_optimizers import optimizers
from pscale.report.grids_precision import ON_TIME, precisions
from pscale.report.grids_skipped import loss_scales
from pscale.report.grids_threads import threads
from pscale.report.networks import what_ifs
from pscale.report.page.blocks import Section
from pscale.report.page.context import Context
from pscale.report.page.sheets import sheets


def further(context: Context) -> Iterator[Section]:
    """Yield a section for each kind of finding."""
    summary = context.summary
    made = {
        "collectives": (
            "Bare collectives",
            "What every verb takes over sizes of messages, without a model around it.",
            sheets(grids_network.bandwidths(summary), "bandwidths", files=context.files("bandwidths")),
        ),
        "models": (
            "Model",
            "Laws fitted to the sizes that were measured, and what they foretell of larger ones.",
            sheets(
                grids_models.models(summary), "models", files=context.files("models", "predictions", "laws")
            ),
        ),
        "what-if": (
            "What if",
            "The recorded steps again, on networks that are not here.",
            sheets(what_ifs(summary), "what-if", files=context.files("what_if")),
        ),
        "threads": (
            "Threads",
            "How the cores of a rank were used.",
            sheets(threads(summary), "threads", files=context.files("threads"), banded=("efficiency",)),
        ),
        "compression": (
            "Compressed gradients",
            "What compression saves and costs, beside those without it.",
            sheets(compression(summary), "compression", files=context.files("compressed")),
        ),
        "precision": (
            "Precision",
            ON_TIME,
            sheets(precisions(summary), "precision", files=context.files("precision")),
        ),
        "loss-scale": (
            "Loss scaling",
            "How many times larger the loss was made, and which steps overflowed at that.",
            sheets(loss_scales(summary), "loss-scale", files=context.files("skipped")),
        ),
        "offload": (
            "Offload",
            "What lies in a file beside memory, what that saves, and what moving it costs.",
            sheets(offload(summary), "offload", files=context.files("offloaded")),
        ),
        "optimizers": (
            "Optimizers",
            "What each of them has learned after as many steps, and what its state and its update cost.",
            sheets(optimizers(summary), "optimizers", files=context.files("optimizers")),
        ),
        "experts": (
            "Experts",
            "How evenly experts are used, and how many choices found no place.",
            sheets(grids_plans.mixtures(summary), "experts", files=context.files("cases")),
        ),
    }
    for name, (title, lead, tables) in made.items():
        if tables:
            yield Section(name=name, title=title, lead=lead, blocks=tables)
