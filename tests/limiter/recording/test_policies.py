"""Policies that callers bring along are recorded like rules."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.events import ALLOWED, DENIED, NEVER_FITS, REFUSED
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.recording import Recorder
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore

COUNTER = Counter("policy", TokenBucket(3, 3, 60 * US_PER_S), counter_prefix("default", "p", "token_bucket", "-"))


@pytest.mark.parametrize("follow", [False, True])
def test_whole_keys_are_counted(follow: bool) -> None:
    """Decisions of one cost for whole keys are counted once, refusals with their client and their outcome."""
    clock = ManualClock()
    limiter = Limiter.from_quota("5/second", store=MemoryStore(clock), clock=clock)
    recorder = Recorder(clock, name_of=str, follow=follow)
    limiter.record(recorder)
    for cost, names in ((1, "aab"), (1, "aaab"), (2, "c"), (9, "d")):
        assert limiter.decide_alike(COUNTER, [COUNTER.prefix + name for name in names], cost) is not None
    taken = recorder.take(0, US_PER_S, last=True)
    found = {(row.rule, row.outcome): (row.decisions, row.tokens) for row in taken.requests}
    assert found == {("", ALLOWED): (6, 7), ("policy", DENIED): (2, 2), ("policy", NEVER_FITS): (1, 9)}
    rules = {(row.rule, row.outcome): row.decisions for row in taken.rules}
    assert rules == {("policy", ALLOWED): 6, ("policy", DENIED): 2, ("policy", NEVER_FITS): 1}
    refused = {row.subject: row.times for row in taken.subjects if (row.rule, row.kind) == ("policy", REFUSED)}
    assert refused == {"a": 2, "d": 1}
    assert {row.subject: row.asked for row in taken.demand} == ({"a": 5, "b": 2, "c": 1, "d": 1} if follow else {})
