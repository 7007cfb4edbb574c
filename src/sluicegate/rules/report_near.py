"""What leases and the deny cache cost and risk, for one limit of a store that processes share.

The protocol and its proof are in docs/concepts/leases.md; these are its bounds with the numbers of a rule put in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from sluicegate.algorithms import Ban, SlidingLog, TokenBucket
from sluicegate.algorithms.leasing import LeaseTerms, least_window_us
from sluicegate.algorithms.parts import parts_of
from sluicegate.algorithms.precision import Precision, precision_of
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import (
    ESTIMATE_BURST_DIVISOR,
    ESTIMATE_REFRESH_US,
    REDIS_TIMEOUT_MS,
    SPLIT_USE_US,
)
from sluicegate.clock import US_PER_MS, US_PER_S
from sluicegate.rules.model import Rule
from sluicegate.rules.report_row import SharedBounds

__all__ = ["ReportTerms", "leased_from", "shared_bounds", "too_small"]


@dataclass(frozen=True, slots=True)
class ReportTerms:
    """What a fleet is set to, as far as bounds depend on it; the fields of a near store's settings by the same names.

    ``lost_us``: of how long the store is assumed to lose its last writes; ``call_us``: the longest that one call of it takes. ``leases``, ``denials``: whether there are any.
    ``regional``: the limits are those of several regions, in which nothing is split or drawn by chance.
    """

    terms: LeaseTerms = field(default_factory=LeaseTerms)
    horizon_us: int = 200_000
    exact_below: int = 50
    trust_us: int = 1_000_000
    stretch_max_us: int = 5_000_000
    leases: bool = True
    denials: bool = True
    lost_us: int = 2_000_000
    call_us: int = REDIS_TIMEOUT_MS * US_PER_MS
    regional: bool = False


def leased_from(nodes: int, terms: ReportTerms) -> int:
    """The smallest limit that ``nodes`` processes lease; a smaller one is decided by the store."""
    return nodes * terms.exact_below


def too_small(spec: Spec, nodes: int, terms: ReportTerms) -> str:
    """Why a counter of ``spec`` is not leased by so many processes, "" where it is."""
    if spec.capacity < leased_from(nodes, terms):
        who = "a process" if nodes == 1 else f"each of {nodes:,} processes"
        return f"{spec.capacity:,} tokens are fewer than {terms.exact_below} for {who}"
    least_us = least_window_us(spec, terms.horizon_us, terms.terms)
    if least_us is not None and spec.window_us < least_us:
        return f"{spec.window_us / US_PER_S:g} s are fewer than {least_us / US_PER_S:g}, so too much would be lost to leases"
    return ""


def shared_bounds(rule: Rule, spec: Spec | None, nodes: int, terms: ReportTerms | None) -> SharedBounds:
    """``spec`` None: the rule does not limit. ``terms`` None: every check asks the store."""
    if spec is None or isinstance(spec, Ban):
        return SharedBounds(Precision.EXACT.value, leased=False)
    precision = Precision.EXACT
    if terms is not None:
        precision = precision_of(rule.precision, spec, denied_counts=rule.denied_counts)
    whole_only = terms is not None and terms.regional and precision in (Precision.SPLIT, Precision.ESTIMATED)
    if whole_only:
        precision = Precision.EXACT
    terms = terms or ReportTerms(leases=False, denials=False)
    leasable = terms.leases and precision in (Precision.AUTO, Precision.LEASED)
    small = too_small(spec, nodes, terms) if leasable else ""
    leased = leasable and not small
    lost = min(spec.capacity, spec.most_admitted(terms.lost_us))
    held = _held_back(spec, terms) if leased else 0
    more, why_more = _more(precision, spec, nodes, terms)
    trusts = terms.denials and not rule.denied_counts
    return SharedBounds(
        precision=precision.value,
        leased=leased,
        decided="; ".join(
            [
                *_decided(precision, spec, small, leased=leased, terms=terms),
                *(["in regions nothing is split or drawn by chance"] if whole_only else []),
            ]
        ),
        over_admitted=more,
        over_admitted_why=why_more,
        refused_wrongly=held,
        refused_wrongly_why=_why_held(spec, held, terms) if leased else "",
        lost_writes_extra=lost,
        lost_writes=_lost(spec, lost, leased=leased, terms=terms),
        trusted_s=terms.trust_us / US_PER_S if trusts else 0.0,
        stretched_s=max(terms.trust_us, terms.stretch_max_us) / US_PER_S if trusts else 0.0,
        calls_per_s=nodes * _asks_per_s(terms) if leased and precision is Precision.LEASED else None,
    )


def _decided(precision: Precision, spec: Spec, small: str, *, leased: bool, terms: ReportTerms) -> Iterator[str]:
    more = "nothing more is admitted while the store keeps its writes"
    if precision is Precision.LEASED and leased:
        yield f"decided in the process, from leases; {more}"
    elif precision is Precision.AUTO and leased:
        yield f"decided by the store; where it is hot in the process, from leases; {more}"
    elif precision is Precision.SPLIT:
        parts = len(parts_of(spec))
        yield (
            f"decided by the store; where it is hot, in {parts} parts"
            if parts > 1
            else "decided by the store; too small to be split"
        )
    elif precision is Precision.ESTIMATED:
        yield "decided by the store; where it is hot, by chance, from the rate of all processes"
    else:
        yield "decided by the store"
    if small:
        yield f"not leased: {small}"
    elif precision in (Precision.AUTO, Precision.LEASED) and not terms.leases:
        yield "leases are off"


def _held_back(spec: Spec, terms: ReportTerms) -> int:
    """Tokens that lie in processes at a time, and that a client who is refused meanwhile might have had, at most.

    What is taken in advance is what is used in one horizon, and an ask comes every quarter of it. Together never more than half of what there is.
    """
    ahead_us = terms.horizon_us * 5 // 4
    return min(spec.capacity // 2, ceil(spec.capacity * ahead_us / spec.window_us))


def _why_held(spec: Spec, held: int, terms: ReportTerms) -> str:
    text = f"at steady load up to {held:,} fewer in any interval, which wait in processes"
    if isinstance(spec, SlidingLog):
        text += f"; each counts up to {terms.terms.hold_us / US_PER_S:g} s longer than the window"
    return text


def _more(precision: Precision, spec: Spec, nodes: int, terms: ReportTerms) -> tuple[int, str]:
    """Tokens admitted above the limit while the store keeps its writes, and why; docs/concepts/hot-keys.md has the arguments."""
    tokens, period_us = (
        (spec.tokens, spec.period_us) if isinstance(spec, TokenBucket) else (spec.capacity, spec.window_us)
    )
    if precision is Precision.SPLIT and len(parts_of(spec)) > 1:
        split = -(-tokens * terms.call_us // period_us)
        crash = min(spec.capacity, spec.most_admitted(SPLIT_USE_US))
        told = f"up to {split:,} more with each split, and {crash:,} with each process that is lost meanwhile"
        return max(split, crash), told
    if precision is Precision.ESTIMATED:
        age_us = ESTIMATE_REFRESH_US + terms.call_us
        jump = (
            ceil(2 * tokens * age_us / period_us + 2 * tokens * US_PER_S / (ESTIMATE_BURST_DIVISOR * period_us))
            + 2 * nodes
        )
        return (
            jump,
            f"up to {jump:,} more where the load jumps; of k admitted about the root of k more or less by chance",
        )
    return 0, ""


def _asks_per_s(terms: ReportTerms) -> float:
    return 4 * US_PER_S / terms.horizon_us


def _lost(spec: Spec, lost: int, *, leased: bool, terms: ReportTerms) -> str:
    text = f"{terms.lost_us / US_PER_S:g} s of them: up to {lost:,} more; all of them: up to {spec.capacity:,}"
    if not leased:
        return f"{text}; what was charged is admitted again"
    if terms.terms.confirmed:
        return f"{text}; exact charges only: a replica has what was leased"
    return f"{text}; exact charges only, and what was leased where one of those comes before the next lease"
