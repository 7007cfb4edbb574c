"""What holds of every proposal, whatever the traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.analytics.suggestions import Limits, Policy, judge
from sluicegate.analytics.suggestions.series import arrivals_of, clients_of
from sluicegate.analytics.suggestions.trying import capacity_for, refused_tokens
from sluicegate.clock import US_PER_S
from sluicegate.errors import ConfigurationError
from sluicegate.events import Demand
from sluicegate.rules.quota import parse_quota
from sluicegate.rules.quota_format import format_quota

MINUTE_US = 60 * US_PER_S
LITTLE = Policy(clients_min=5, requests_min=5, raise_span_s=60, lower_span_s=60)
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def rows(draw: st.DrawFn) -> list[Demand]:
    """Demand of some clients in some of a few hundred minutes; whatever of a minute is above a limit was refused."""
    random = Random(draw(st.integers(0, 2**32)))
    limit = draw(st.sampled_from([1, 10, 100, 10_000]))
    busy = draw(st.sampled_from([3, 60, 2_000]))
    made = []
    for number in range(draw(st.integers(5, 40))):
        for minute in random.sample(range(400), random.randint(1, 6)):
            asked = max(1, int(random.paretovariate(1.1)) % busy)
            tokens = asked * random.choice([1, 1, 3])
            short = random.randint(-(-tokens // 60), tokens)
            long = (
                random.randint(max(short, -(-tokens // 6)), min(tokens, 10 * short))
                if short * 10 > -(-tokens // 6)
                else tokens
            )
            refused = max(0, asked - limit)
            made.append(
                Demand(
                    "api",
                    "",
                    f"c{number}",
                    (1_700_000_040 + 60 * minute) * US_PER_S,
                    60,
                    asked,
                    tokens,
                    refused,
                    short,
                    long,
                )
            )
    return made


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """One limit of any sort."""
    limit = draw(st.sampled_from([1, 2, 3, 7, 10, 33, 100, 1_000, 9_999]))
    window_us = draw(st.sampled_from([US_PER_S, 10 * US_PER_S, MINUTE_US, 60 * MINUTE_US]))
    every: list[Spec] = [
        TokenBucket(limit, limit, window_us),
        TokenBucket(limit, draw(st.integers(1, 20)), US_PER_S),
        LeakyBucket(limit, limit, window_us, nodelay=draw(st.booleans())),
        FixedWindow(limit, window_us),
        SlidingWindow(limit, window_us),
        SlidingLog(limit, window_us),
    ]
    return draw(st.sampled_from(every))


def rate_of(spec: Spec) -> float:
    """Tokens a second in the long run."""
    if isinstance(spec, TokenBucket | LeakyBucket):
        return spec.tokens * US_PER_S / spec.period_us
    return spec.capacity * US_PER_S / spec.window_us


def proposed(spec: Spec, demand: Sequence[Demand], minimum: Spec | None = None, policy: Policy = LITTLE) -> Spec:
    """What a proposal comes to, read back from its text."""
    given = Limits("api", "", (spec,), format_quota((spec,)), minimum=minimum, minimum_text="promised")
    made = judge(given, demand, policy)
    options: dict[str, object] = {}
    if isinstance(spec, LeakyBucket):
        options = {"nodelay": spec.nodelay}
    return parse_quota(made.proposed, algorithm=spec.algorithm, **options).specs[0]  # type: ignore[arg-type]


@SLOW
@given(rows(), specs())
def test_one_step_and_round_text(demand: list[Demand], spec: Spec) -> None:
    """A proposal can be read as a quota, and neither capacity nor rate goes beyond twice or below half of those of now."""
    new = proposed(spec, demand)
    assert -(-spec.capacity // 2) <= new.capacity <= 2 * spec.capacity
    assert 0.49 * rate_of(spec) <= rate_of(new) <= 2.01 * rate_of(spec)


@SLOW
@given(rows(), specs(), st.integers(1, 100))
def test_never_below_the_minimum(demand: list[Demand], spec: Spec, percent: int) -> None:
    """A minimum that the present numbers keep is kept by those proposed, at once and in the long run."""
    least = max(1, spec.capacity * percent // 100)
    minimum = FixedWindow(least, max(spec.window_us, 1))
    new = proposed(spec, demand, minimum)
    assert new.capacity >= least
    assert rate_of(new) >= rate_of(minimum) * (1 - 1e-9) or rate_of(new) >= rate_of(spec) * (1 - 1e-9)


@SLOW
@given(rows(), specs(), st.randoms())
def test_the_same_traffic_in_any_order_proposes_the_same(demand: list[Demand], spec: Spec, random: Random) -> None:
    """Order of the rows is no evidence; everything told is equal, ids included."""
    given = Limits("api", "", (spec,), format_quota((spec,)))
    shuffled = list(demand)
    random.shuffle(shuffled)
    assert judge(given, demand, LITTLE) == judge(given, shuffled, LITTLE)


@SLOW
@given(rows(), st.sampled_from([10, 40, 100]), st.integers(2, 5))
def test_more_demand_never_lowers(demand: list[Demand], limit: int, times: int) -> None:
    """Everybody asking several times as much never makes the proposal smaller."""
    spec = FixedWindow(limit, MINUTE_US)
    more = [
        Demand(
            one.rule, one.tier, one.subject, one.at_us, 60, one.asked * times, one.tokens * times,
            one.refused * times, one.peak_1s * times, one.peak_10s * times,
        )
        for one in demand
    ]  # fmt: skip
    assert proposed(spec, more).capacity >= proposed(spec, demand).capacity


@SLOW
@given(rows())
def test_laid_out_is_what_was_told(demand: list[Demand]) -> None:
    """What is laid out of a row has its tokens, within its span, and no second and no ten seconds above the peaks."""
    for row in demand:
        laid = arrivals_of(row)
        assert sum(tokens for _, tokens in laid) == row.tokens
        assert all(row.at_us <= at_us < row.at_us + row.span_s * US_PER_S for at_us, _ in laid)
        assert max(tokens for _, tokens in laid) == row.peak_1s
        for at_us, _ in laid:
            assert sum(tokens for time_us, tokens in laid if at_us <= time_us < at_us + 10 * US_PER_S) <= row.peak_10s


@SLOW
@given(rows(), st.integers(1, 50), st.sampled_from([US_PER_S, MINUTE_US]))
def test_smallest_capacity_is_the_smallest(demand: list[Demand], tokens: int, period_us: int) -> None:
    """By the algorithm itself a bucket of that capacity refuses a client nothing, and one token less refuses something."""
    for client in clients_of(demand)[0]:
        capacity = capacity_for(client, tokens, period_us)
        assert refused_tokens(client, (TokenBucket(capacity, tokens, period_us),)) == 0
        if capacity > 1:
            assert refused_tokens(client, (TokenBucket(capacity - 1, tokens, period_us),)) > 0


@pytest.mark.parametrize("flood", [61, 500, 10**9])
@pytest.mark.parametrize("flooders", [4])
def test_a_flood_raises_nothing(
    world: Callable[..., list[Demand]], limits: Callable[..., Limits], flood: int, flooders: int
) -> None:
    """A few of a thousand clients may ask whatever they like: the limit stays as it was without them."""
    quiet = world((900, 5), (100, 50), limit=60)
    given = limits(FixedWindow(60, MINUTE_US))
    noisy = quiet + world((1, 1), (0, 1), (flooders, flood), limit=60)
    assert judge(given, quiet).proposed == judge(given, noisy).proposed == "60/minute"


def test_numbers_out_of_range_are_refused() -> None:
    """A policy without sense is an error that names the field."""
    with pytest.raises(ConfigurationError, match="step_max"):
        Policy(step_max=0.5)
    with pytest.raises(ConfigurationError, match="headroom"):
        Policy(headroom=float("nan"))
