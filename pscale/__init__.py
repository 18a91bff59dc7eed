"""Measure how well training scales on this machine, and what limits it.

>>> import pscale
>>> run = pscale.load("reports/weak")  # the newest run of a suite; or pscale.run("weak")
>>> run.efficiency()
"""

__version__ = "0.1.0"
__all__ = ["PscaleError", "Results", "__version__", "load", "run"]

TYPE_CHECKING = False  # as `typing` has it, whose import takes longer than this one
if TYPE_CHECKING:
    from pscale.api import Results, load, run
    from pscale.errors import PscaleError


def __getattr__(name: str) -> object:
    """Import what is used when it is used."""
    if name not in __all__:
        raise AttributeError(f"pscale has no {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module("pscale.errors" if name == "PscaleError" else "pscale.api"), name)


def __dir__() -> list[str]:
    return __all__
