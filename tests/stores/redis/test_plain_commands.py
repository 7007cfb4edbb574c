"""Counting hits with INCRBY instead of a script: where that is the same, and where it is not, on real servers.

Each test has two windows over the same hits: the store's counter with ``denied_counts``, and one that plain commands keep as other
programs do, an integer per window. They are what docs/redis-commands.md says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from random import Random

import pytest
import redis

from sluicegate.algorithms import FixedWindow, SlidingWindow
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Counter, Receipt
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore

SECOND = 1_000_000
WINDOW_US = 10 * SECOND

Windows = FixedWindow | SlidingWindow


class Both:
    """A window in the store and one of plain commands, asked the same."""

    def __init__(self, store: RedisStore, client: redis.Redis, clock: ManualClock, spec: Windows) -> None:
        self.store, self.client, self.clock = store, client, clock
        self.take(spec)

    def take(self, spec: Windows, *, denied_counts: bool = True) -> None:
        """Use these numbers from here on."""
        self.spec = spec
        prefix = counter_prefix("plain", "rule", spec.algorithm, spec.shape)
        self.counter = Counter("rule", spec, prefix, denied_counts=denied_counts)

    def key(self, windows_ago: int = 0) -> str:
        """The integer of a window, named by the window as the client's bracket of the server's time says."""
        return f"plain:{{s}}:{self.clock.now_us() // WINDOW_US - windows_ago}"

    def hit(self, cost: int = 1) -> tuple[bool, bool]:
        """(admitted by the store, admitted by what plain commands counted)."""
        with self.client.pipeline(transaction=True) as pipeline:
            pipeline.incrby(self.key(), cost)
            pipeline.pexpire(self.key(), 2 * WINDOW_US // 1_000)
            pipeline.get(self.key(windows_ago=1))
            used, _, before = pipeline.execute()
        if isinstance(self.spec, SlidingWindow):
            overlap_us = WINDOW_US - self.clock.now_us() % WINDOW_US
            used -= -int(before or 0) * overlap_us // WINDOW_US
        return self.store.decide_one([(self.counter, "s", cost)]).admitted, used <= self.spec.limit

    def receipt(self) -> Receipt:
        """Of a charge of one made now."""
        return Receipt(self.counter, "s", 1, self.clock.now_us())


@pytest.fixture
def both(open_store: Callable[[ManualClock], RedisStore], server) -> Iterator[Both]:
    """A limit of 3 per fixed window, at the start of a window."""
    clock = ManualClock(1_700_000_000 * SECOND)
    with contextlib.closing(server.client()) as client:
        yield Both(open_store(clock), client, clock, FixedWindow(3, WINDOW_US))


def test_inside_one_fixed_window_both_admit_the_same(both: Both) -> None:
    """Where each refused hit counts, an integer that goes on above the limit refuses what a count capped at the limit refuses."""
    draw = Random(1)
    for _ in range(40):
        both.clock.advance(WINDOW_US)
        both.take(FixedWindow(draw.randrange(1, 30), WINDOW_US))
        for _ in range(20):
            both.clock.advance(draw.randrange(1_000))
            cost = draw.randrange(1, both.spec.limit + 1)
            stored, plain = both.hit(cost)
            assert stored == plain
        (verdict,) = both.store.decide_one([(both.counter, "s", 0)], peek=True).verdicts()
        assert verdict.remaining == max(both.spec.limit - int(both.client.get(both.key())), 0)


def test_a_refused_hit_stays_charged(both: Both) -> None:
    """Under a rule whose refusals cost nothing, an INCRBY that was refused takes the room of a smaller hit after it."""  # T08, P01
    both.take(FixedWindow(5, WINDOW_US), denied_counts=False)
    assert both.hit(3) == (True, True)
    assert both.hit(3) == (False, False)
    assert both.hit(2) == (True, False)


def test_the_older_count_of_a_sliding_window_does_not_give_way(both: Both) -> None:
    """Refusals that count make the older count give way, so that they cost one drain at most; an INCRBY leaves it as it was."""
    both.take(SlidingWindow(10, WINDOW_US))
    both.clock.advance(WINDOW_US - SECOND)
    assert both.hit(10) == (True, True)
    both.clock.advance(SECOND)
    assert both.hit() == (False, False)
    both.clock.advance(SECOND)
    assert both.hit() == (False, False)
    both.clock.advance(SECOND)
    assert both.hit() == (True, False)


def test_a_refund_gives_nothing_while_the_count_is_above_the_limit(both: Both) -> None:
    """A refund makes room in a count that is capped at the limit; an integer above the limit first has to come down to it."""
    for _ in range(3):
        assert both.hit() == (True, True)
    for _ in range(2):
        assert both.hit() == (False, False)
    assert both.store.refund([both.receipt()]) == 1
    both.client.decrby(both.key(), 1)
    assert both.hit() == (True, False)


def test_a_refund_after_a_reset_is_of_another_counter(both: Both) -> None:
    """A counter knows when it began, and gives nothing back of a charge from before; an integer does not know."""
    both.hit()
    receipt = both.receipt()
    both.store.reset([(both.counter, "s")])
    both.client.delete(both.key())
    both.clock.advance(1)
    for _ in range(3):
        assert both.hit() == (True, True)
    assert both.store.refund([receipt]) == 0
    both.client.decrby(both.key(), 1)
    assert both.hit() == (False, True)


def test_a_raised_limit_does_not_forget_hits_above_the_old_one(both: Both) -> None:
    """A raised limit helps at once: of the old counts at most the old limit is kept; an integer kept all that was refused."""
    for _ in range(3):
        both.hit()
    for _ in range(4):
        assert both.hit() == (False, False)
    both.take(FixedWindow(6, WINDOW_US))
    assert both.hit() == (True, False)


def test_a_clock_that_goes_back_over_the_edge_starts_the_window_before(both: Both) -> None:
    """A counter waits for a clock that was set back by a few seconds; the integer of the window before begins anew."""
    for _ in range(3):
        assert both.hit() == (True, True)
    both.clock.set(both.clock.now_us() - SECOND)
    assert both.hit() == (False, True)
