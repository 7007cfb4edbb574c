"""Ways in which a process could get leases wrong, to see that the histories of such processes are told from right ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluicegate.algorithms.leasing import Holding, LeaseAsk, LeaseGrant
from sluicegate.errors import StoreError
from sluicegate.stores.base import LeaseItem
from sluicegate.stores.near.leases import Leases

__all__ = ["WRONG", "become"]


def count_on_lost_answers() -> None:
    """Take it that the store has granted what was asked where its answer is missing."""
    answered = Leases.answered

    def wrong(
        self: Leases, items: Sequence[LeaseItem], grants: Sequence[LeaseGrant | StoreError], now_us: int
    ) -> list[str]:
        for item, grant in zip(items, grants, strict=True):
            entry = self._entries.get(item.counter.prefix + item.subject)
            if isinstance(grant, StoreError) and item.ask.want and entry is not None and entry.under_way is item.ask:
                lasts_us = entry.terms.hold_us
                entry.answered(item.ask, LeaseGrant(item.ask.want, lasts_us, 0, 0, False, False, 0, ""), now_us)
        return answered(self, items, grants, now_us)

    Leases.answered = wrong  # type: ignore[method-assign]


def keep_over_forks() -> None:
    """Spend of what the parent holds, too."""
    Leases.forked = lambda self: None  # type: ignore[method-assign]


def give_back_what_is_spent() -> None:
    """Report half of what was spent of a lease when it is closed, so that the store takes the rest back."""
    ask = Holding.ask

    def wrong(self: Holding, now_us: int, **options: Any) -> LeaseAsk:
        found = ask(self, now_us, **options)
        reports = [one._replace(spent=one.spent // 2) if one.closed else one for one in found.reports]
        return found._replace(reports=reports)

    Holding.ask = wrong  # type: ignore[method-assign]


def spend_what_goes_back() -> None:
    """Tell the store that tokens go back, and spend them all the same."""
    ask, answered = Holding.ask, Holding.answered

    def wrong(self: Holding, now_us: int, **options: Any) -> LeaseAsk:
        found = ask(self, now_us, **options)
        for held in self._leases:
            held.closing = held.closing and now_us >= held.end_us
        self._look(now_us)
        return found

    def keeping(self: Holding, ask: LeaseAsk, grant: LeaseGrant, now_us: int) -> int:
        reports = [report._replace(closed=False) for report in ask.reports]
        return answered(self, ask._replace(reports=reports), grant, now_us)

    Holding.ask, Holding.answered = wrong, keeping  # type: ignore[method-assign]


WRONG = {
    "counts on lost answers": count_on_lost_answers,
    "keeps over forks": keep_over_forks,
    "gives back what is spent": give_back_what_is_spent,
    "spends what goes back": spend_what_goes_back,
}


def become(name: str) -> None:
    """Be wrong in this way from now on; "" for not at all."""
    if name:
        WRONG[name]()
