"""Rules, facts and a store put together: the limiter and what it answers."""

from __future__ import annotations

from sluicegate.limiter.decision import Decision, RuleResult
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.quick import rate_limit
from sluicegate.limiter.stats import LimiterStats

__all__ = ["Decision", "Limiter", "LimiterStats", "RuleResult", "rate_limit"]
