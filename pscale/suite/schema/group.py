"""Fields that belong together."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Group(BaseModel):
    """Fields that belong together. Nothing is guessed: no other fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
