"""What one case is: the values that cross from the suite to the job.

Frozen, keyword-only and of the standard library alone, so that every package may read them.
"""

from pscale.config.case import Case
from pscale.config.launch import Launch, Omp, Require, Timing
from pscale.config.model import Model
from pscale.config.plain import from_dict, to_dict
from pscale.config.plan import Matrix, Plan
from pscale.config.training import Data, Precision, Train

__all__ = [
    "Case",
    "Data",
    "Launch",
    "Matrix",
    "Model",
    "Omp",
    "Plan",
    "Precision",
    "Require",
    "Timing",
    "Train",
    "from_dict",
    "to_dict",
]
