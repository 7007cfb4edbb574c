"""A limit for one function in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sluicegate.clock import Clock
from sluicegate.limiter.decorator import Cost, Key
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.base import Store

__all__ = ["rate_limit"]

P = ParamSpec("P")
R = TypeVar("R")


def rate_limit(
    quota: str,
    *,
    key: Key = None,
    cost: Cost = 1,
    algorithm: str = "token_bucket",
    store: Store | str = "memory://",
    clock: Clock | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """``Limiter.from_quota(quota, ...).limit(key=key, cost=cost)``: a limit of its own for one function.

    With the memory store each decorated function has its own counters. Functions that share a store share the counters
    of equal keys; a limiter of their own ``name`` keeps them apart.
    """
    return Limiter.from_quota(quota, algorithm, store, clock).limit(key=key, cost=cost)
