"""Counters that are leased while they are hot, and what becomes of them when the table is full."""

from __future__ import annotations

from collections.abc import Callable

from sluicegate.algorithms import Precision, TokenBucket
from sluicegate.clock import US_PER_S
from sluicegate.stores.base import Counter
from sluicegate.stores.near import NearSettings

SPEC = TokenBucket(100_000, 100_000, US_PER_S)


def test_a_hot_counter_that_lost_its_place_is_leased_again(bench, counter_of: Callable[..., Counter]) -> None:
    """It was idle for a moment in which many others came; from its next calls on it is leased as before, and counted from nothing."""
    near = bench.near(NearSettings(leases_max=4))
    hot, flood = counter_of("hot", SPEC, Precision.AUTO), counter_of("flood", SPEC, Precision.LEASED)

    def use(seconds: int) -> None:
        for _ in range(100 * seconds):
            near.decide_one([(hot, "u", 1)])
            bench.pass_us(US_PER_S // 100)

    use(3)
    assert near.front.leases.find(hot, "u", near.now_us()) is not None
    bench.pass_us(2 * US_PER_S)
    for number in range(10):
        near.decide_one([(flood, str(number), 1)])
    assert near.front.leases.used(hot.prefix + "u") is None
    use(1)
    bench.model.asked.clear()
    use(3)
    assert near.front.leases.find(hot, "u", near.now_us()) is not None
    assert len(bench.model.asked) < 10
    assert near.warmth.promoted == 1


def test_a_hot_counter_for_which_there_is_no_place_is_not_called_promoted(
    bench, counter_of: Callable[..., Counter]
) -> None:
    """Its place was taken by one that is in use: it is exact, and may be found hot again later."""
    near = bench.near(NearSettings(leases_max=1))
    hot, other = counter_of("hot", SPEC, Precision.AUTO), counter_of("other", SPEC, Precision.LEASED)
    for _ in range(300):
        near.decide_one([(hot, "u", 1)])
        bench.pass_us(US_PER_S // 100)
    assert near.warmth.promoted == 1
    bench.pass_us(2 * US_PER_S)
    for _ in range(100):
        near.decide_one([(other, "*", 1)])
        bench.pass_us(US_PER_S // 1_000)
    near.decide_one([(hot, "u", 1)])
    assert near.warmth.promoted == 0
