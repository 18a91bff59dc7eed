"""Keep a library out that another one would import only because it is installed, or never uses."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType


class _Forbidden:
    """A finder that answers for one library: it is not here."""

    def __init__(self, name: str):
        self._name = name

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> None:
        """Raise for the forbidden library; leave all others to the next finder."""
        if name.partition(".")[0] == self._name:
            raise ModuleNotFoundError(f"{name} is kept out", name=name)


def forbid(name: str) -> None:
    """Let imports of library `name` fail from now on."""
    sys.meta_path.insert(0, _Forbidden(name))


@contextmanager
def without(name: str) -> Iterator[None]:
    """Let imports of library `name` fail inside the block; what was imported before stays."""
    finder = _Forbidden(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def hollow(*names: str) -> Iterator[None]:
    """Let imports of these modules inside the block find any name and nothing behind it."""
    absent = [name for name in names if name not in sys.modules]
    for name in absent:
        sys.modules[name] = module = ModuleType(name)
        module.__getattr__ = lambda _: object  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
