"""One line of the bounds report."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RuleBounds", "SharedBounds"]


@dataclass(frozen=True, slots=True)
class SharedBounds:
    """What leases and the deny cache do to one limit, where processes share its store.

    ``precision``: what the counter has. ``leased``: whether it may be decided from leases at the given number of nodes; ``decided`` says
    where it is, in words. ``over_admitted``: tokens above the rule's own bound in any interval, at most, while the store keeps its writes; ``over_admitted_why``: "" where none.
    ``refused_wrongly``: tokens that lie in processes at steady load, at most, and that a refused client might have had.
    ``lost_writes_extra``: tokens above the bound, at most, where the store loses its last writes; ``lost_writes``: in words.
    ``trusted_s``: for how long at most a refusal is repeated without asking the store; 0: never; ``stretched_s``: the same
    where several processes are hammered for one counter. ``calls_per_s``: calls of the store by all
    nodes, at most, for a counter that is always leased; None for others. ``regions``: what of the limit each region has, in words.
    """

    precision: str
    leased: bool
    decided: str = ""
    over_admitted: int = 0
    over_admitted_why: str = ""
    refused_wrongly: int = 0
    refused_wrongly_why: str = ""
    lost_writes_extra: int = 0
    lost_writes: str = ""
    trusted_s: float = 0.0
    stretched_s: float = 0.0
    calls_per_s: float | None = None
    regions: str = ""


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
    ``store_failure`` says what the rule's policy does, in words. ``shared``: what a store that processes share adds to that.
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
    shared: SharedBounds
