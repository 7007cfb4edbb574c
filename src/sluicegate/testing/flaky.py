"""A store that fails when told to."""

from __future__ import annotations

from collections.abc import Sequence

from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Charge, Counter, Receipt, Request, Single, Store

__all__ = ["FlakyStore"]


class FlakyStore:
    """Wraps a store and has its type. Counts ``calls``; those that fail raise StoreError and count in ``failures``.

    ``down``: every call fails before it reaches the store, as when it cannot be connected. ``fail_next``: so many calls
    fail like that. ``lose_next``: so many calls reach the store and take effect, but their reply is lost.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.down = False
        self.fail_next = 0
        self.lose_next = 0
        self.calls = 0
        self.failures = 0

    def __repr__(self) -> str:
        return f"FlakyStore({self.store!r})"

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        self._before()
        answers = self.store.decide(requests, peek=peek)
        self._after()
        return answers

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        self._before()
        answer = self.store.decide_one(request, peek=peek)
        self._after()
        return answer

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        self._before()
        singles = self.store.decide_singles(charges, peek=peek)
        self._after()
        return singles

    def refund(self, receipts: Sequence[Receipt]) -> int:
        self._before()
        changed = self.store.refund(receipts)
        self._after()
        return changed

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        self._before()
        given = self.store.grant(charges)
        self._after()
        return given

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        self._before()
        existed = self.store.reset(keys)
        self._after()
        return existed

    def close(self) -> None:
        self.store.close()

    def _before(self) -> None:
        self.calls += 1
        if self.down or self.fail_next:
            self.fail_next = max(self.fail_next - 1, 0)
            self.failures += 1
            raise StoreError("the store is down (FlakyStore)")

    def _after(self) -> None:
        if self.lose_next:
            self.lose_next -= 1
            self.failures += 1
            raise StoreError("the store's reply was lost (FlakyStore)")
