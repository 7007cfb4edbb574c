"""Receipts: what has to be kept so that a charge can be given back, once."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from sluicegate.bounds import RECEIPT_TTL_US, RECEIPTS_MAX
from sluicegate.clock import Clock
from sluicegate.errors import ReceiptUnknown, StoreError
from sluicegate.stores.base import Counter, Receipt, Store
from sluicegate.stores.locks import Locked

__all__ = ["Charged", "Receipts", "refund_all"]

_ID_BYTES = 16


Charged: TypeAlias = tuple[Store, Sequence[Receipt]]
"""Charges and the store that they were made in."""


class _Kept(NamedTuple):
    number: int
    expires_us: int
    charged: Sequence[Charged]


class Receipts(Locked):
    """Charges by an id that cannot be guessed, for ``RECEIPT_TTL_US``, at most ``max_receipts`` of them.

    In this process only: a receipt is good where it was given. ``dropped`` counts receipts that were forgotten early
    because the table was full. Safe under threads; ids are random, so an id is no statement about order or number.
    """

    __slots__ = ("_clock", "_given", "_kept", "_max", "_order", "_resets", "_ttl_us", "dropped")

    def __init__(self, clock: Clock, *, max_receipts: int = RECEIPTS_MAX, ttl_us: int = RECEIPT_TTL_US) -> None:
        super().__init__()
        self._clock = clock
        self._max = max_receipts
        self._ttl_us = ttl_us
        self._kept: dict[str, _Kept] = {}
        self._given = 0
        # Counter keys that were reset -> receipts given until then, the oldest reset first; at most max_receipts of them.
        self._resets: dict[str, int] = {}
        # Ids in order of expiry, used ones included until their turn comes; each call removes at most two.
        self._order: deque[tuple[int, str]] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._kept)

    def give(self, *charged: Charged) -> str:
        """Keep these charges and return the id that gives them back."""
        decision_id = secrets.token_urlsafe(_ID_BYTES)
        now_us = self._clock.monotonic_us()
        expires_us = now_us + self._ttl_us
        with self._lock:
            order = self._order
            for _ in range(2):
                if order and (order[0][0] <= now_us or len(order) >= self._max):
                    oldest_us, oldest = order.popleft()
                    if self._kept.pop(oldest, None) is not None and oldest_us > now_us:
                        self.dropped += 1
            self._given += 1
            self._kept[decision_id] = _Kept(self._given, expires_us, charged)
            order.append((expires_us, decision_id))
        return decision_id

    def forget(self, counters: Sequence[tuple[Counter, str]]) -> None:
        """These counters were reset, so charges made before have been given back already; no receipt does it again."""
        with self._lock:
            resets = self._resets
            if not self._kept:
                resets.clear()
                return
            for counter, subject in counters:
                key = counter.prefix + subject
                resets.pop(key, None)
                resets[key] = self._given
                if len(resets) > self._max:
                    del resets[next(iter(resets))]

    def take(self, decision_id: str) -> list[Charged]:
        """The charges to be given back for this id, where no reset has given them back; empty ones are left out.

        Good once: raises ReceiptUnknown for every later call, and for an id that is unknown or has expired.
        """
        with self._lock:
            kept = self._kept.pop(decision_id, None)
            if kept is None or kept.expires_us <= self._clock.monotonic_us():
                raise ReceiptUnknown
            due = [
                (store, [receipt for receipt in receipts if self._stands(receipt, kept)])
                for store, receipts in kept.charged
            ]
        return [(store, receipts) for store, receipts in due if receipts]

    def _stands(self, receipt: Receipt, kept: _Kept) -> bool:
        """The counter was not reset since the charge."""
        return not self._resets or self._resets.get(receipt.counter.prefix + receipt.subject, 0) < kept.number


def refund_all(charged: Sequence[Charged]) -> int:
    """Refund in every store, whichever of them fails; then raise the first StoreError, if there was one."""
    changed = 0
    failed: StoreError | None = None
    for store, receipts in charged:
        try:
            changed += store.refund(receipts)
        except StoreError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return changed
