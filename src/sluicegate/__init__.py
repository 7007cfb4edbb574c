"""Sluicegate, a rate limiter: rules say who may do how much, a limiter decides, a store counts.

    from sluicegate import Limiter

    limiter = Limiter.from_quota("100/minute")
    if not limiter.check("user:8123"):
        ...  # refuse

This import needs the core dependencies only. Servers are in ``sluicegate.doors`` and the command ``sluicegate``.
"""

from __future__ import annotations

from sluicegate.algorithms import Outcome
from sluicegate.clock import Clock, ManualClock, SystemClock
from sluicegate.errors import (
    ConfigurationError,
    InternalError,
    InvalidRequest,
    MissingExtra,
    RateLimited,
    ReceiptUnknown,
    SluicegateError,
    StoreError,
    StoreFull,
)
from sluicegate.limiter import Decision, Limiter, RuleResult, rate_limit
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import RuleSet
from sluicegate.stores.memory import MemoryStore

__all__ = [
    "Clock",
    "ConfigurationError",
    "Decision",
    "Facts",
    "InternalError",
    "InvalidRequest",
    "Limiter",
    "ManualClock",
    "MemoryStore",
    "MissingExtra",
    "Outcome",
    "RateLimited",
    "ReceiptUnknown",
    "RuleResult",
    "RuleSet",
    "SluicegateError",
    "StoreError",
    "StoreFull",
    "SystemClock",
    "load_rules",
    "rate_limit",
]
