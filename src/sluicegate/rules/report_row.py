"""One line of the bounds report."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RuleBounds"]


@dataclass(frozen=True, slots=True)
class RuleBounds:
    """The worst case of one limit: of one rule, for one tier (None: every tier), for one client.

    ``most_admitted`` is the most tokens admitted in any interval of ``interval_s`` seconds, ``at_once`` at one moment
    (in two microseconds, so that a window's edge counts), ``sustained_per_s`` in the long run; all None where the
    quota is unlimited or the rule is not enforced. ``formula`` says why, in words. ``refused_wrongly`` is how many
    tokens fewer, at most, are admitted in ``interval_s`` than by an exact log of the same limit;
    ``refused_wrongly_why`` explains it.

    ``counters`` is how many exist at the given number of clients (1 where nobody is told apart), ``counter_bytes``
    the most memory of one and ``memory_bytes`` of all. ``store_calls_per_s``: calls at the given load if every
    request matches; the rules of one request share its one call. ``outage_extra`` is how many tokens more than
    ``formula`` says one outage of the store admits at most, all nodes together; None where there is no such number.
    ``store_failure`` says what the rule's policy does, in words.
    """

    rule: str
    tier: str | None
    mode: str
    per: str
    algorithm: str
    quota: str
    interval_s: float | None
    most_admitted: int | None
    at_once: int | None
    sustained_per_s: float | None
    formula: str
    refused_wrongly: int
    refused_wrongly_why: str
    counters: int
    counter_bytes: int
    memory_bytes: int
    store_calls_per_s: float
    on_store_failure: str
    outage_extra: int | None
    store_failure: str
