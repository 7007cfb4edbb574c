"""A master is the queue it is said to be."""

from __future__ import annotations

import dataclasses
import statistics
from random import Random

import pytest

from sluicegate.bounds import REDIS_BATCH_MAX, SIM_LATENCY_US_MAX
from sluicegate.simulation import Calibration
from sluicegate.simulation.masters import Latencies, Master

SERVICE_US = 100.0
NEVER_US = 1e12


@pytest.fixture
def even(costs: Calibration) -> Calibration:
    """A call takes 100 microseconds of the server, and nothing elsewhere."""
    return dataclasses.replace(
        costs, local_check_us=1e-9, ask_us=1e-9, exact_call_us=SERVICE_US - 1e-9, exact_check_us=1e-9
    )


def mean_us(latencies: Latencies) -> float:
    """The mean of what was counted, in the middle of its steps."""
    return sum((step + 0.5) * times for step, times in enumerate(latencies.counts)) / latencies.total


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7, 0.85])
def test_waiting_is_that_of_m_d_1(even: Calibration, load: float) -> None:
    """With independent arrivals and constant service the mean wait is load * service / (2 * (1 - load)), as Pollaczek and Khinchine say."""
    draw = Random(11)
    lanes = 20_000
    master = Master(even, lanes, 0.0, 0.0, NEVER_US, draw)
    arrivals, now_us = [], 0.0
    for _ in range(300_000):
        now_us += draw.expovariate(load / SERVICE_US)
        arrivals.append((now_us, draw.randrange(lanes)))
    master.play(now_us + 1e7, arrivals, ())
    wait_us = mean_us(master.latencies) - SERVICE_US
    assert wait_us == pytest.approx(load * SERVICE_US / (2 * (1 - load)), rel=0.05, abs=1.0)
    assert master.busy_us / now_us == pytest.approx(load, rel=0.01)


def test_every_check_is_answered_once(costs: Calibration) -> None:
    """Whatever waits for its lane rides together later: no check is lost, none is answered twice."""
    draw = Random(5)
    master = Master(costs, 3, 100.0, 50.0, NEVER_US, draw)
    arrivals = sorted((draw.random() * 1e5, draw.randrange(3)) for _ in range(5_000))
    for first in range(0, 5_000, 500):
        part = arrivals[first : first + 500]
        master.play(part[-1][0], part, ())
    master.play(1e9, (), ())
    assert master.checks == master.latencies.total == 5_000
    assert master.calls < 5_000


def test_no_call_has_more_than_a_batch(costs: Calibration) -> None:
    """What waits for a lane leaves in calls of ``REDIS_BATCH_MAX`` at most."""
    master = Master(costs, 1, 100.0, 0.0, NEVER_US, Random(1))
    master.play(1e9, [(float(place) / 1_000, 0) for place in range(1 + 2 * REDIS_BATCH_MAX)], ())
    assert (master.calls, master.checks) == (3, 1 + 2 * REDIS_BATCH_MAX)


def test_who_waits_too_long_is_late(even: Calibration) -> None:
    """A check that has no answer at its deadline counts as late, with the deadline as its latency."""
    master = Master(even, 100, 0.0, 0.0, 250.0, Random(1))
    master.play(1e9, [(0.0, lane) for lane in range(10)], ())
    assert master.late == 8
    assert master.latencies.longest_us == pytest.approx(250.0)


def test_steps_of_leases_take_their_time(costs: Calibration) -> None:
    """A step of leases keeps a check behind it waiting for as long as it takes."""
    master = Master(costs, 1, 0.0, 0.0, NEVER_US, Random(1))
    master.play(1e9, [(1.0, 0)], [(0.5, 2)])
    until_us = 0.5 + costs.lease_call_us + 2 * costs.lease_item_us + costs.exact_call_us + costs.exact_check_us
    assert master.latencies.longest_us == pytest.approx(until_us - 1.0 + costs.local_check_us + costs.ask_us)
    assert master.lease_calls == 1


def test_percentiles() -> None:
    """A percentile is the upper end of the step that holds it, and never above the longest; sums of two hold both."""
    draw = Random(2)
    values = [draw.uniform(0, 500) for _ in range(10_000)]
    found, other = Latencies(), Latencies()
    for value in values:
        found.add(value)
    other.add(2.0 * SIM_LATENCY_US_MAX, 10)
    cuts = statistics.quantiles(values, n=100)
    assert found.at(0.5, 0.99, 1.0) == pytest.approx([cuts[49], cuts[98], max(values)], abs=1.5)
    found.merge(other)
    assert (found.total, found.longest_us) == (10_010, 2.0 * SIM_LATENCY_US_MAX)
    assert Latencies().at(0.5) == [0.0]
