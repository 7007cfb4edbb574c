"""Which specs leases serve, by the length of their windows."""

from __future__ import annotations

from sluicegate.algorithms.fixed_window import FixedWindow
from sluicegate.algorithms.leasing.terms import LeaseTerms
from sluicegate.algorithms.sliding_log import SlidingLog
from sluicegate.algorithms.sliding_window import SlidingWindow
from sluicegate.algorithms.spec import Spec
from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.bounds import LEASE_LOG_HOLDS_MIN, LEASE_SLIDING_HORIZONS_MIN, LEASE_SUB_HORIZONS_MIN

__all__ = ["can_lease", "least_window_us"]


def least_window_us(spec: Spec, horizon_us: int, terms: LeaseTerms) -> int | None:
    """The shortest window of a spec of this kind that is leased where tokens are taken ``horizon_us`` ahead; None: none is.

    A counter that fills up or begins anew within two horizons would lose too much to what is out or dies with its window; so would a
    sliding window of fewer horizons than ``LEASE_SLIDING_HORIZONS_MIN``, or with sub-windows of fewer than ``LEASE_SUB_HORIZONS_MIN``, and a log
    of fewer holds than ``LEASE_LOG_HOLDS_MIN``.
    """
    if isinstance(spec, SlidingLog):
        return LEASE_LOG_HOLDS_MIN * terms.hold_us
    if isinstance(spec, SlidingWindow):
        return max(LEASE_SLIDING_HORIZONS_MIN, LEASE_SUB_HORIZONS_MIN * (spec.sub_windows or 1)) * horizon_us
    return 2 * horizon_us if isinstance(spec, TokenBucket | FixedWindow) else None


def can_lease(spec: Spec, horizon_us: int, terms: LeaseTerms) -> bool:
    """Whether leases serve a spec at all, whatever its limit."""
    least_us = least_window_us(spec, horizon_us, terms)
    return least_us is not None and spec.window_us >= least_us
