"""Which variables of the environment are never stored: results are shared, what opens doors is not."""

from __future__ import annotations

import re

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|JWT|KEY", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Tell whether the name of a variable says that its value is to be kept from others."""
    return _SECRET.search(name) is not None
