"""What one case is: the values that cross from the suite to the job.

Frozen, keyword-only and of the standard library alone, so that every package may read them.
"""

from pscale.config.case import JOINT, Case, Ghost, Inject, Jitter, from_dict, to_dict, to_document
from pscale.config.launch import Launch, Omp, Require, Timing
from pscale.config.plan import Matrix, Plan
from pscale.config.training import Data, Evaluate, Model, Precision, Save, Train, is_16_bit
from pscale.config.workload import Figure, Files, Program, Success, Workload

__all__ = [
    "JOINT",
    "Case",
    "Data",
    "Evaluate",
    "Figure",
    "Files",
    "Ghost",
    "Inject",
    "Jitter",
    "Launch",
    "Matrix",
    "Model",
    "Omp",
    "Plan",
    "Precision",
    "Program",
    "Require",
    "Save",
    "Success",
    "Timing",
    "Train",
    "Workload",
    "from_dict",
    "is_16_bit",
    "to_dict",
    "to_document",
]
