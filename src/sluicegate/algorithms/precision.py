"""How exactly a counter that many processes share is kept: the choice between asking its store every time and not."""

from __future__ import annotations

from enum import StrEnum

from sluicegate.algorithms.ban import Ban
from sluicegate.algorithms.leaky_bucket import LeakyBucket
from sluicegate.algorithms.spec import Spec

__all__ = ["Precision", "precision_of"]


class Precision(StrEnum):
    """Where a counter may be decided. Only ``ESTIMATED`` ever admits more than the limit while the store keeps its writes."""

    EXACT = "exact"
    """Every check asks the store, unless it is known that the store would refuse."""
    AUTO = "auto"
    """Exact; leased by itself while it is hot, and exact again when it is cold."""
    LEASED = "leased"
    """Decided in the process from tokens taken in advance. Asks the store where the limit is too small for that."""
    SPLIT = "split"
    """Exact; kept in several counters, each with a part of the limit, while it is hot."""
    ESTIMATED = "estimated"
    """Exact; while it is hot, admitted by chance from the rate of the whole fleet. May exceed the limit by a stated bound."""


def precision_of(wanted: Precision, spec: Spec, *, denied_counts: bool = False) -> Precision:
    """The precision that a counter of ``spec`` has where ``wanted`` was asked for: the same, or ``EXACT`` where that cannot be.

    A leaky bucket lets its requests leave one after the other, which no two processes can do apart, and a ban admits nothing.
    A refusal that counts has to reach the store, so such a counter is at most ``SPLIT``.
    """
    if isinstance(spec, LeakyBucket | Ban):
        return Precision.EXACT
    return Precision.EXACT if denied_counts and wanted is not Precision.SPLIT else wanted
