"""Leases: tokens of a shared counter taken in advance, spent in one process. Pure, as all algorithms."""

from __future__ import annotations

from sluicegate.algorithms.leasing.holding import Holding, Spend
from sluicegate.algorithms.leasing.leased import LOST, Leased, LeasedState, Turn
from sluicegate.algorithms.leasing.ledger import Lease, Ledger
from sluicegate.algorithms.leasing.serving import can_lease, least_window_us
from sluicegate.algorithms.leasing.terms import (
    HOLDER_CHARS,
    LeaseAsk,
    LeaseGrant,
    LeaseReport,
    LeaseTerms,
    check_ask,
    lease_size,
)

__all__ = [
    "HOLDER_CHARS",
    "LOST",
    "Holding",
    "Lease",
    "LeaseAsk",
    "LeaseGrant",
    "LeaseReport",
    "LeaseTerms",
    "Leased",
    "LeasedState",
    "Ledger",
    "Spend",
    "Turn",
    "can_lease",
    "check_ask",
    "lease_size",
    "least_window_us",
]
