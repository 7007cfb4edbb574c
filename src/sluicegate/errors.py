"""Every exception the package raises, grouped by whose fault it is.

    SluicegateError
    ├── InvalidRequest        the caller: a bad cost, key, fact or receipt
    │   └── ReceiptUnknown    a receipt that does not exist, has expired or was used
    ├── RateLimited           a decorated function was not run, because its call was refused
    ├── ConfigurationError    the operator: a bad rule file, flag or policy
    │   └── MissingExtra      an optional dependency is not installed
    ├── StoreError            the counter store; carries ``transient``
    │   ├── PartlyDecided     some requests of a batch were decided, the others were not
    │   ├── PartlyReached     some counters of one request were reached, the others were not
    │   └── StoreFull         the store refuses new counters at its bound
    ├── AnalyticsError        the home of what is known about traffic; carries ``transient``
    └── InternalError         us: a broken invariant

A refusal is never an exception: it is a value, ``Decision`` with ``allowed=False``. Only a decorated function, which
has no decision to return, raises ``RateLimited``.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AnalyticsError",
    "ConfigurationError",
    "InternalError",
    "InvalidRequest",
    "MissingExtra",
    "PartlyDecided",
    "PartlyReached",
    "RateLimited",
    "ReceiptUnknown",
    "SluicegateError",
    "StoreError",
    "StoreFull",
    "without_login",
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


class ReceiptUnknown(InvalidRequest):
    """No charge is known under this receipt: it never existed, has expired, or was used. Nothing was given back."""

    def __init__(self) -> None:
        super().__init__("decision_id", "no such receipt: it is unknown, has expired, or was used before")


class RateLimited(SluicegateError):
    """A decorated function was called more often than its limit allows. The function did not run.

    ``decision`` is the whole ``Decision`` (declared as object, because errors know no other module). ``retry_after_s``:
    seconds after which the same call passes if nobody else asks; None where its cost can never pass.
    """

    def __init__(self, decision: object, rule: str | None, retry_after_s: float | None) -> None:
        when = "its cost can never pass" if retry_after_s is None else f"retry after {retry_after_s:g} s"
        super().__init__(f"refused by {rule!r}: {when}")
        self.decision = decision
        self.rule = rule
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[RateLimited], tuple[object, str | None, float | None]]:
        return type(self), (self.decision, self.rule, self.retry_after_s)


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


class PartlyDecided(StoreError):
    """Some requests of a batch have an answer and were charged; the others have none and were not.

    ``answers``: one per request, in order: its answer; PartlyReached, where only some of its counters were reached and what those were
    charged stands; None where there is none (declared as objects, because errors know no other module). ``cause``: the first reason.
    """

    def __init__(self, cause: StoreError, answers: Sequence[object]) -> None:
        super().__init__(str(cause), transient=cause.transient)
        self.cause = cause
        self.answers = answers


class PartlyReached(StoreError):
    """Some counters of one request were reached and decided, on a store of several servers; the others were not.

    ``verdicts``: one per charge, in order, None where it is not known (declared as objects, because errors know no other
    module). ``receipts``: the charges that were made and still stand; whoever refuses the request refunds them.
    ``now_us``: the store's time of one of the decisions.
    """

    def __init__(self, cause: StoreError, verdicts: Sequence[object], receipts: Sequence[object], now_us: int) -> None:
        super().__init__(str(cause), transient=cause.transient)
        self.cause = cause
        self.verdicts = verdicts
        self.receipts = receipts
        self.now_us = now_us


class StoreFull(StoreError):
    """The store is at its bound and every counter in it is live."""


class AnalyticsError(SluicegateError):
    """What is known about traffic could not be kept or asked for. No decision depends on it.

    ``transient`` is True where the same call may succeed later without anyone changing anything.
    """

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class InternalError(SluicegateError):
    """An invariant of this package is broken; please report it."""


def without_login(address: str) -> str:
    """A URL or address as a message may show it: what stands before its last ``@``, a password perhaps, is ``***``."""
    before, at, host = address.rpartition("@")
    if not at:
        return address
    scheme, slashes, _ = before.partition("://")
    return f"{scheme}://***@{host}" if slashes else f"***@{host}"
