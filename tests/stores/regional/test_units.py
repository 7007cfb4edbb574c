"""Units and the table of regions: parts never add up to more than the whole, and errors name the field."""

from __future__ import annotations

import itertools
from fractions import Fraction
from random import Random

import pytest

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.bounds import REGION_UNITS
from sluicegate.errors import ConfigurationError
from sluicegate.stores.base import Counter
from sluicegate.stores.regional.plan import Plan
from sluicegate.stores.regional.units import ALL, apportioned, first_of, mask_of, part_of, ranges_of, tokens_of

SECOND = 1_000_000
SPECS: list[Spec] = [
    TokenBucket(50_000, 50_000, SECOND),
    TokenBucket(7, 7, 60 * SECOND),
    TokenBucket(1, 10, SECOND),
    LeakyBucket(30, 10, SECOND, 1_000, True),
    FixedWindow(101, SECOND),
    SlidingWindow(100, 60 * SECOND, sub_windows=6),
    SlidingLog(50, SECOND),
    Ban(),
]


def test_sets_are_kept_as_ranges() -> None:
    """Any set comes back from its ranges, and ranges that overlap, are out of order or beyond the units are refused."""
    draw = Random(1)
    for _ in range(50):
        mask = draw.getrandbits(REGION_UNITS) & draw.getrandbits(REGION_UNITS)
        assert mask_of(ranges_of(mask)) == mask
    assert ranges_of(ALL) == [0, REGION_UNITS]
    for bad in ([5, 5], [0, 2, 1, 3], [0, REGION_UNITS + 1], [-1, 2]):
        with pytest.raises(ValueError, match="units"):
            mask_of(bad)


def test_the_first_units_of_a_set() -> None:
    """So many of the lowest, or all there are."""
    assert first_of(0b1101100, 3) == 0b0101100
    assert first_of(0b1101100, 9) == 0b1101100
    assert first_of(0b1101100, 0) == 0


@pytest.mark.parametrize("weights", [(1, 1, 1), (50, 30, 20), (1, 999), (1, 0, 3), (7,), tuple(range(1, 33))])
@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_parts_add_up_to_the_whole(weights: tuple[int, ...], spec: Spec) -> None:
    """Tokens of all regions are exactly those of the whole, and so are the rates of buckets where every region has a token."""
    masks = apportioned(weights)
    assert sum(masks) == ALL
    parts = [part_of(spec, mask) for mask in masks]
    assert sum(part.capacity for part in parts) == spec.capacity
    rates = [Fraction(part.tokens, part.period_us) for part in parts if isinstance(part, TokenBucket)]
    if isinstance(spec, TokenBucket):
        assert sum(rates) <= Fraction(spec.tokens, spec.period_us)
        if len(rates) == len(parts):
            assert sum(rates) == Fraction(spec.tokens, spec.period_us)


def test_any_sets_without_a_common_unit_are_no_more_than_the_whole() -> None:
    """However the units are scattered over regions, tokens are theirs alone."""
    draw = Random(2)
    for capacity in (1, 2, 3, 10, 999, 6_001, 10**12):
        left, total = ALL, 0
        while left:
            mask = left & draw.getrandbits(REGION_UNITS) or left
            total += tokens_of(mask, capacity)
            left &= ~mask
        assert total == capacity


def test_three_equal_regions_keep_four_fifths_each() -> None:
    """With the default a region may come to 46.7 % of the whole, with 0.9 to 93.3 %."""
    plan = Plan({"a": 1, "b": 1, "c": 1})
    most = plan.own("a").bit_count() + sum((plan.own(name) & ~plan.kept(name)).bit_count() for name in "bc")
    assert round(100 * most / REGION_UNITS, 1) == 46.7
    plan = Plan({"a": 1, "b": 1, "c": 1}, Fraction(9, 10))
    most = plan.own("a").bit_count() + sum((plan.own(name) & ~plan.kept(name)).bit_count() for name in "bc")
    assert round(100 * most / REGION_UNITS, 1) == 93.3


def test_while_weights_change_each_region_has_what_is_its_own_by_both_tables() -> None:
    """Nothing is anybody's by the old table and somebody else's in the change, nor in the change and by the new one."""
    old, new = {"a": 1, "b": 1, "c": 2}, {"a": 3, "b": 1, "d": 1}
    plans = [Plan(old), Plan(new, before=old, version=2), Plan(new, version=3)]
    for earlier, later in itertools.pairwise(plans):
        for one in earlier.names:
            for other in later.names:
                if one != other:
                    assert not earlier.own(one) & later.own(other)
    assert plans[1].own("a") == plans[1].kept("a")
    assert plans[1].own("d") == 0


def _counter(spec: Spec) -> Counter:
    return Counter("all", spec, f"default:all:{spec.algorithm}:{spec.shape.replace('/', '.')}:0:")


def test_which_counters_move() -> None:
    """Shared buckets and windows of which every region keeps a token; no queues, logs, bans, charged refusals and counters of one client."""
    plan = Plan({"a": 1, "b": 1, "c": 1})
    moving = [spec for spec in SPECS if plan.moves(_counter(spec), shared=True)]
    assert [spec.algorithm for spec in moving] == ["token_bucket", "token_bucket", "fixed_window", "sliding_window"]
    assert not plan.moves(_counter(SPECS[0]), shared=False)
    assert not plan.moves(_counter(SPECS[0])._replace(denied_counts=True), shared=True)
    assert not Plan({"a": 1, "b": 1}, Fraction(0)).moves(_counter(SPECS[0]), shared=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": {}}, "regions: want 1 to 32"),
        ({"weights": {"A": 1}}, "regions: 'A' is no name"),
        ({"weights": {"a": -1}}, "regions: a: want 0 to"),
        ({"weights": {"a": 0}}, "regions: the weights of all"),
        ({"weights": {"a": 1}, "before": {"a": 0}}, "regions_before: the weights"),
        ({"weights": {"a": 1}, "borrow_max": Fraction(3, 2)}, "borrow_max: want 0 to 1"),
        ({"weights": {"a": 1}, "version": 0}, "regions_version: want 1"),
        ({"weights": {"a": 1}, "clients": "some"}, "region_clients: want share or each"),
    ],
)
def test_errors_name_the_field(settings: dict[str, object], message: str) -> None:
    """What is wrong in a table is said by the name of its field and with the value."""
    with pytest.raises(ConfigurationError, match=message):
        Plan(**settings)  # type: ignore[arg-type]
