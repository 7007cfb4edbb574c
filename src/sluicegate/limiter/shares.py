"""What stands for the store's counters in this process, by the terms of their rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from sluicegate.algorithms.share import share_of
from sluicegate.algorithms.spec import OnChange, Spec
from sluicegate.bounds import COUNTER_MEMO_MAX
from sluicegate.rules.model import FailurePolicy, Rule
from sluicegate.stores.base import Counter

__all__ = ["EVEN", "Share", "Shares", "Terms", "TermsOf", "terms_of"]


class Terms(NamedTuple):
    """What a rule says about its store's failure. ``empty``: local counters start without a token; ``sticky``: N is 1."""

    policy: FailurePolicy = FailurePolicy.LOCAL
    empty: bool = False
    sticky: bool = False


EVEN = Terms()
"""Of rules that say nothing, and of counters that belong to no rule."""

TermsOf: TypeAlias = Callable[[Counter], Terms]
"""The terms of the rule a counter belongs to."""


class Share(NamedTuple):
    """The counters that stand for one of the store's.

    ``local``: what this process counts by; ``full``: what is left of it where nothing is used, which is less than the capacity of a
    queue that holds nobody for so long. ``debt``: the store's counter as one that is charged what was admitted without
    it, as much as it can bear, whether or not it admits: that is what ``denied_counts`` does.
    """

    counter: Counter
    local: Counter
    debt: Counter
    full: int


class Shares:
    """Shares by counter, remembered. A change of N or of the rule's numbers keeps the fraction of a local counter that is used.

    So a changing N mints no token: a node that has spent its half has nothing of a third either, and nothing when the half
    comes back. ``least``: what of a counter is to be shared by the nodes, where that is not all of it; None: all.
    """

    __slots__ = ("_least", "_memo")

    def __init__(self, least: Callable[[Counter], Spec] | None = None) -> None:
        self._least = least
        # By identity: to hash a counter takes longer than to decide by it. The entry keeps its counter, so no id is used twice.
        self._memo: dict[tuple[int, int], Share] = {}

    def of(self, counter: Counter, nodes: int) -> Share:
        """The share of one of ``nodes`` nodes."""
        share = self._memo.get((id(counter), nodes))
        if share is None:
            if len(self._memo) >= COUNTER_MEMO_MAX:
                self._memo.clear()
            whole = counter.spec if self._least is None else self._least(counter)
            local = counter._replace(spec=share_of(whole, nodes), shadow=False, on_change=OnChange.SCALE)
            debt = counter._replace(shadow=False, denied_counts=True)
            full = local.spec.verdict(None, 0, 0, True).remaining
            share = self._memo[id(counter), nodes] = Share(counter, local, debt, full)
        return share


def terms_of(rule: Rule) -> Terms:
    """The terms of a rule."""
    return Terms(rule.on_store_failure, rule.fallback_start == "empty", rule.fallback_share == "sticky")
