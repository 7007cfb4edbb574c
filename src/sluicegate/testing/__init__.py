"""For tests of programs that limit, and of stores: a clock to turn by hand, stores that fail or answer later, a contract.

    from sluicegate.testing import FakeClock

    clock = FakeClock()
    limiter = Limiter.from_quota("2/minute", clock=clock)
    ...
    clock.advance(30_000_000)  # microseconds

Nothing here needs a test framework, though the contract suite is written for pytest.
"""

from __future__ import annotations

from sluicegate.clock import ManualClock as FakeClock
from sluicegate.testing.flaky import FlakyStore
from sluicegate.testing.intervals import worst_excess
from sluicegate.testing.later import AwaitedStore, LaterStore, LeasingStore
from sluicegate.testing.steps import Step, run_steps
from sluicegate.testing.store_contract import StoreContract

__all__ = [
    "AwaitedStore",
    "FakeClock",
    "FlakyStore",
    "LaterStore",
    "LeasingStore",
    "Step",
    "StoreContract",
    "run_steps",
    "worst_excess",
]
