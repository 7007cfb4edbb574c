"""Checks shared by the constructors of all specs."""

from __future__ import annotations

from sluicegate.bounds import CAPACITY_MAX

__all__ = ["check_capacity", "check_integer"]


def check_integer(field: str, value: object, low: int, high: int) -> int:
    """``value``, an int within ``low..high``; else ValueError naming field and value. A bool is not an int here."""
    if type(value) is not int:
        raise ValueError(f"{field}: must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{field}: must be within {low}..{high}, got {value}")
    return value


def check_capacity(field: str, value: object) -> int:
    """``value`` as the tokens of a counter; a limit of nothing has a spec of its own."""
    if type(value) is int and value == 0:
        raise ValueError(f"{field}: must be >= 1, got 0; a limit that admits nothing is Ban()")
    return check_integer(field, value, 1, CAPACITY_MAX)
