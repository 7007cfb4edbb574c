"""Which counters are called hot, and that they do not flap."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from sluicegate.bounds import HEAT_WINDOW_US
from sluicegate.clock import US_PER_S
from sluicegate.stores.near.heat import Heat
from sluicegate.stores.near.settings import NearSettings

SETTINGS = NearSettings(hot_per_s=100, cold_per_s=40, cold_us=5 * US_PER_S)


def second(heat: Heat, calls: dict[str, int], now_us: int) -> tuple[list[str], list[str]]:
    """One window with so many calls at its end."""
    for key, count in calls.items():
        for _ in range(count):
            heat.saw(key, now_us)
    return heat.step(now_us)


def test_up_at_once_and_down_after_a_while() -> None:
    """The first window at the upper threshold makes a counter hot; windows below the lower one for ``cold_us`` make it cold, a warm one begins anew."""
    heat = Heat(SETTINGS)
    told = []
    loads = [99, 100, 60, 39, 39, 39, 40, 39, 39, 39, 39, 39, 39, 99]
    for number, calls in enumerate(loads, 1):
        risen, cold = second(heat, {"a": calls}, number * US_PER_S)
        told += [(number, "hot", key) for key in risen] + [(number, "cold", key) for key in cold]
        assert ("a" in heat) is (2 <= number < 12)
    assert told == [(2, "hot", "a"), (12, "cold", "a")]


def test_the_hottest_come_first_and_only_what_is_certain() -> None:
    """With more keys than are counted, those above the threshold by N / size are told and none that is below it."""
    source = Random(3)
    heat = Heat(SETTINGS, size=50)
    calls = {f"hot{number}": 400 + 10 * number for number in range(5)}
    stream = [key for key, count in calls.items() for _ in range(count)] + [
        f"cold{source.randrange(4_000)}" for _ in range(10_000)
    ]
    source.shuffle(stream)
    for key in stream:
        heat.saw(key, US_PER_S)
    risen, cold = heat.step(US_PER_S)
    assert risen[0] in ("hot4", "hot3", "hot2")
    assert (set(risen), cold) == (set(calls), [])


@pytest.mark.parametrize("mean", [10, 38, 40, 42, 70, 98, 100, 102, 150])
def test_noise_makes_it_change_rarely(mean: int) -> None:
    """An hour of random load around a threshold: it changes at most once in ``cold_us``, and above the lower threshold it never gets cold."""
    source = Random(mean)
    heat = Heat(SETTINGS)
    changes: list[int] = []
    now_us = 0
    for _ in range(3_600):
        calls = round(source.gauss(mean, mean**0.5))
        now_us += HEAT_WINDOW_US + source.randrange(50_000)
        risen, cold = second(heat, {"a": calls}, now_us)
        if risen or cold:
            changes.append(now_us)
    assert all(later - sooner >= SETTINGS.cold_us for sooner, later in zip(changes[1::2], changes[2::2], strict=False))
    assert len(changes) <= (0 if mean <= 42 else 1), changes


def test_a_load_that_swings_changes_it_at_most_once_in_the_time() -> None:
    """The worst load, from nothing to hot and back as fast as it can, makes it cold at most once in ``cold_us``."""
    heat = Heat(SETTINGS)
    colds = [number for number in range(1, 600) if second(heat, {"a": 500 * (number % 7 == 0)}, number * US_PER_S)[1]]
    assert all(later - sooner >= 5 for sooner, later in pairwise(colds))
    heat = Heat(SETTINGS)
    assert not any(second(heat, {"a": 500 * (number % 4 == 0)}, number * US_PER_S)[1] for number in range(1, 600))


def test_leased_calls_count_too() -> None:
    """What nobody told call by call keeps a hot counter warm, and makes no cold one hot."""
    heat = Heat(SETTINGS)
    heat.saw_many("a", 10_000)
    assert heat.step(US_PER_S) == ([], [])
    second(heat, {"a": 200}, 2 * US_PER_S)
    for number in range(3, 30):
        heat.saw_many("a", 50)
        assert heat.step(number * US_PER_S) == ([], [])
    assert "a" in heat
    heat.forget("a")
    assert "a" not in heat


def test_windows_that_nobody_ended() -> None:
    """Before a window is over nothing is told; a long one counts by its rate, so that a pause makes nothing hot."""
    heat = Heat(SETTINGS)
    assert second(heat, {"a": 99}, HEAT_WINDOW_US - 1) == ([], [])
    assert heat.due_us == HEAT_WINDOW_US
    assert not any(heat.saw("a", 59 * US_PER_S) for _ in range(4_900))
    assert heat.step(60 * US_PER_S) == ([], [])
    assert second(heat, {"a": 100}, 61 * US_PER_S) == (["a"], [])
    assert second(heat, {}, 600 * US_PER_S) == ([], ["a"])


def test_hot_before_the_window_is_over() -> None:
    """The call that is one too many for a whole window makes a counter hot, and says so once; the end of the window does not tell it again."""
    heat = Heat(SETTINGS)
    assert [heat.saw("a", 1_000 + number) for number in range(300)] == [number == 99 for number in range(300)]
    assert "a" in heat
    assert second(heat, {"b": 100}, US_PER_S) == (["b"], [])
    assert second(heat, {}, 5 * US_PER_S - 1) == ([], [])
    assert second(heat, {}, 6 * US_PER_S) == ([], ["a", "b"])


def test_what_cannot_be_treated_as_hot_is_tried_once_in_a_window() -> None:
    """A counter that is forgotten as hot is told again when the window is over, not with every call."""
    heat = Heat(SETTINGS)
    told = 0
    for _ in range(1_000):
        if heat.saw("a", 1_000):
            told += 1
            heat.forget("a")
    assert told == 1
    assert heat.step(US_PER_S) == (["a"], [])


def test_only_what_is_certain_makes_hot_at_once() -> None:
    """Counts that are inherited from other keys make nothing hot, however high they are."""
    heat = Heat(SETTINGS, size=10)
    assert not any(heat.saw(f"cold{number % 400}", 1_000) for number in range(8_000))
    assert any(heat.saw("hot", 1_000) for _ in range(100))
