"""What layers keep for backward leaves memory after forward and is back before backward, in one order.

Whoever moves it does so in arrays or on paper: a step and its rehearsal take and give back the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

Held = TypeVar("Held")  # what is moved: memory, or what stands for it


@dataclass(eq=False)
class Parcel(Generic[Held]):
    """What a segment keeps, with places in `cache` for what is away.

    `sizes` and `holders` are those of each piece of memory, `held` the memory while it is here.
    """

    cache: Any
    sizes: list[int]
    holders: list[int]
    held: list[Held]
    at: int  # in the file
    comes: bool = field(default=False)

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return sum(self.sizes)


class Mover(Protocol[Held]):
    """Takes parcels away and brings them back."""

    def leave(self, cache: Any, mark: Mapping[Any, int], x: Any, y: Any) -> Parcel[Held]:
        """Begin to write what was taken since `mark`, and the input, but not the output; all is here yet."""
        ...

    def vacate(self, parcel: Parcel[Held]) -> None:
        """Give the memory back when it is written."""
        ...

    def fetch(self, parcel: Parcel[Held]) -> None:
        """Take memory and begin to read."""
        ...

    def arrive(self, parcel: Parcel[Held]) -> Any:
        """Return what the segment kept, when it is read."""
        ...


class Keeping(Generic[Held]):
    """Has parcels away; without a mover everything stays where it is.

    While a segment computes, the one before it is written; while one goes back, the next to do so is read.
    """

    def __init__(self, mover: Mover[Held] | None = None):
        self._mover = mover
        self._leaving: Parcel[Held] | None = None

    @property
    def moves(self) -> bool:
        """Whether anything leaves."""
        return self._mover is not None

    def put(self, cache: Any, mark: Mapping[Any, int], x: Any, y: Any, *, goes: bool) -> Any:
        """Return what to keep of a segment whose forward is over; `goes` says whether it may leave."""
        if self._mover is None:
            return cache
        self._settle()
        if not goes:
            return cache
        self._leaving = self._mover.leave(cache, mark, x, y)
        return self._leaving

    def begin(self, kept: list[Any]) -> None:
        """Let the last of `kept` come: its backward is next."""
        self._settle()
        if self._mover is not None and kept and isinstance(kept[-1], Parcel) and not kept[-1].comes:
            kept[-1].comes = True
            self._mover.fetch(kept[-1])

    def get(self, kept: list[Any]) -> Any:
        """Take the last of `kept` off, whole, and let the one before it come."""
        self.begin(kept)
        last = kept.pop()
        if self._mover is not None and isinstance(last, Parcel):
            last = self._mover.arrive(last)
        self.begin(kept)
        return last

    def _settle(self) -> None:
        if self._mover is not None and self._leaving is not None:
            self._mover.vacate(self._leaving)
            self._leaving = None


class Room:
    """Where parcels lie in the file, each in room of its size that is free, or at the end."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._free: dict[int, list[int]] = {}

    def take(self, size_bytes: int) -> int:
        """Return where so much fits."""
        free = self._free.get(size_bytes)
        if free:
            return free.pop()
        self.size_bytes += size_bytes
        return self.size_bytes - size_bytes

    def give(self, size_bytes: int, at: int) -> None:
        """Let it be used again."""
        self._free.setdefault(size_bytes, []).append(at)
