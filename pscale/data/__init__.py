"""Where samples come from, which rank gets which, and how they are read.

One seam for the trainer: `prepare` returns the `Batches` of a rank, `fill` the arrays of a micro-batch.
"""

from pscale.data.batches import check, prepare, prepare_validation
from pscale.data.corpus import find_corpus
from pscale.data.synthetic import Batches

__all__ = ["Batches", "check", "find_corpus", "prepare", "prepare_validation"]
