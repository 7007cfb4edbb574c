"""Every exception the package raises, grouped by whose fault it is.

    SluicegateError
    ├── InvalidRequest        the caller: a bad cost, key, fact or receipt
    ├── ConfigurationError    the operator: a bad rule file, flag or policy
    │   └── MissingExtra      an optional dependency is not installed
    ├── StoreError            the counter store; carries ``transient``
    │   └── StoreFull         the store refuses new counters at its bound
    └── InternalError         us: a broken invariant

A refusal is never an exception: it is a value, ``Decision`` with ``allowed=False``.
"""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "InternalError",
    "InvalidRequest",
    "MissingExtra",
    "SluicegateError",
    "StoreError",
    "StoreFull",
]


class SluicegateError(Exception):
    """Base of all errors raised on purpose by this package."""


class InvalidRequest(SluicegateError, ValueError):
    """The caller asked for something that cannot be decided.

    ``field`` names the offending input (for instance ``"cost"`` or ``"facts.ip"``); doors put it in the
    problem document. Nothing was charged.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class ConfigurationError(SluicegateError, ValueError):
    """A rule file, policy, flag or environment variable is wrong; the message names value and field."""


class MissingExtra(ConfigurationError, ImportError):
    """A feature needs an optional dependency; ``extra`` is what to install as ``sluicegate[extra]``."""

    def __init__(self, extra: str, feature: str) -> None:
        super().__init__(f"{feature} needs the extra {extra!r}: pip install 'sluicegate[{extra}]'")
        self.extra = extra


class StoreError(SluicegateError):
    """The store gave no usable answer; the rule's ``on_store_failure`` decides what happens.

    ``transient`` is True where the same call may succeed later without anyone changing anything.
    """

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class StoreFull(StoreError):
    """The store is at its bound and every counter in it is live."""


class InternalError(SluicegateError):
    """An invariant of this package is broken; please report it."""
