"""Rate headers: every dialect, on passes, refusals and in between."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.algorithms.verdict import Outcome, Verdict
from sluicegate.clock import ManualClock
from sluicegate.doors.headers import DIALECTS, RateHeaders
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.decision import Decision, RuleResult, Summary
from sluicegate.limiter.plan import Plan
from sluicegate.stores.base import Charge, Counter
from sluicegate.stores.memory import MemoryStore

START_US = 1_700_000_000_000_000


class World:
    """A store with a few counters and a clock."""

    def __init__(self, *counters: Counter) -> None:
        self.clock = ManualClock(START_US)
        self.store = MemoryStore(self.clock)
        self.counters = counters

    def decide(self, cost: int = 1) -> Decision:
        charges = [(counter, "s", cost) for counter in self.counters]
        answer = self.store.decide_one(charges)
        return Decision(answer.admitted, Plan(charges), answer)

    def items(self, dialects: str, cost: int = 1) -> dict[str, str]:
        headers = RateHeaders(dialects)
        found = headers.items(self.decide(cost), self.clock.now_us())
        assert len({name for name, _ in found}) == len(found)
        return dict(found)


def counter(name: str, spec: Spec, *, shadow: bool = False) -> Counter:
    return Counter(name, spec, f"{name}:", shadow)


API = counter("api", TokenBucket(100, 10, 1_000_000))
LOGIN = counter("login", FixedWindow(5, 60_000_000))


def test_pass_describes_the_rule_and_says_no_retry_after() -> None:
    """P25: a pass carries limit, remaining, whole seconds until full, the policy, and no Retry-After."""
    assert World(API).items("x-ratelimit", 13) == {
        "X-RateLimit-Limit": "100",
        "X-RateLimit-Remaining": "87",
        "X-RateLimit-Reset": "2",
        "X-RateLimit-Policy": "api;q=100;w=10;alg=token_bucket",
    }


def test_refusal_says_when_to_come_back() -> None:
    """T66, P22: on a refusal Reset = Retry-After, rounded up, and waiting so long succeeds."""
    world = World(LOGIN)
    world.clock.advance(11_500_000)
    while world.decide():
        pass
    items = world.items("x-ratelimit")
    now_s = world.clock.now_us() / 1_000_000
    assert items["X-RateLimit-Remaining"] == "0"
    assert items["X-RateLimit-Reset"] == items["Retry-After"]
    wait_s = int(items["Retry-After"])
    assert (now_s + wait_s) // 60 == now_s // 60 + 1
    assert (now_s + wait_s - 1) // 60 == now_s // 60, "not a second longer than needed"
    world.clock.advance(wait_s * 1_000_000 - 1_000_000)
    assert not world.decide()
    world.clock.advance(1_000_000)
    assert world.decide()


def test_retry_after_is_at_least_one_second() -> None:
    """P22: a wait of 50 ms is told as 1, never 0."""
    world = World(counter("fast", TokenBucket(1, 20, 1_000_000)))
    world.decide()
    items = world.items("x-ratelimit")
    assert items["Retry-After"] == items["X-RateLimit-Reset"] == "1"


def test_full_bucket_resets_now() -> None:
    """A peeked full counter is full in 0 s, an integer."""
    world = World(API)
    charges = [(API, "s", 0)]
    answer = world.store.decide_one(charges, peek=True)
    items = dict(RateHeaders().items(Decision(True, Plan(charges), answer), START_US))
    assert items["X-RateLimit-Reset"] == "0"


def test_headers_describe_the_rule_that_refused() -> None:
    """T68: with 5/minute and 100,000/year, the sixth call describes the minute limit and resets within 60 s."""
    year = counter("yearly", FixedWindow(100_000, 365 * 86_400_000_000))
    world = World(year, LOGIN)
    for left in (4, 3, 2, 1, 0):
        assert world.items("x-ratelimit")["X-RateLimit-Remaining"] == str(left)
    items = world.items("x-ratelimit")
    assert items["X-RateLimit-Limit"] == "5"
    assert items["X-RateLimit-Policy"].startswith("login;")
    assert int(items["X-RateLimit-Reset"]) <= 60
    assert int(items["Retry-After"]) <= 60


def test_remaining_counts_down_from_the_first_hit() -> None:
    """T69: 50/minute at second 11 shows 49 remaining and a reset of 49 s."""
    world = World(counter("fifty", FixedWindow(50, 60_000_000)))
    world.clock.advance((60 - START_US // 1_000_000 % 60 + 11) * 1_000_000)
    items = world.items("x-ratelimit")
    assert (items["X-RateLimit-Remaining"], items["X-RateLimit-Reset"]) == ("49", "49")


@pytest.mark.parametrize("elapsed_us", [1, 999_999, 1_000_000, 1_000_001, 59_000_000, 59_999_999])
def test_reset_is_the_ceiling_and_not_one_more(elapsed_us: int) -> None:
    """T71, P36: Reset is the exact time rounded up, at whole seconds exactly that."""
    world = World(counter("w", FixedWindow(5, 60_000_000)))
    world.clock.set(START_US - START_US % 60_000_000 + 60_000_000 + elapsed_us)
    exact_us = 60_000_000 - elapsed_us
    assert int(world.items("x-ratelimit")["X-RateLimit-Reset"]) == -(-exact_us // 1_000_000)


def test_refused_cost_leaves_what_remains_visible() -> None:
    """T08: a cost of 5 refused by 3 left still says 3 remain; the IETF field says 0 until then."""
    world = World(LOGIN)
    world.decide(2)
    items = world.items("x-ratelimit,ietf", 4)
    assert items["X-RateLimit-Remaining"] == "3"
    assert items["RateLimit"] == f'"login";r=0;t={items["Retry-After"]}'


def test_epoch_reset_is_the_moment_rounded_up() -> None:
    """The epoch dialect tells the same moment in seconds since 1970."""
    world = World(API)
    world.clock.advance(300_000)
    items = world.items("x-ratelimit-epoch", 13)
    assert items["X-RateLimit-Reset"] == "1700000002"
    world.decide(87)
    items = world.items("x-ratelimit-epoch", 10)
    assert items["X-RateLimit-Reset"] == "1700000002"
    assert items["Retry-After"] == "1"


def test_never_fitting_cost_promises_nothing() -> None:
    """A cost above the capacity, and a ban, get neither Retry-After nor Reset: no wait helps."""
    for world, cost in ((World(LOGIN), 6), (World(counter("ban", Ban())), 1)):
        items = world.items("x-ratelimit", cost)
        assert "Retry-After" not in items
        assert "X-RateLimit-Reset" not in items
        limit, name = world.counters[0].spec.capacity, world.counters[0].name
        assert items["X-RateLimit-Limit"] == items["X-RateLimit-Remaining"] == str(limit)
        assert world.items("ietf", cost)["RateLimit"] == f'"{name}";r=0'
        assert "RateLimit-Reset" not in world.items("ietf-legacy", cost)


def test_no_matching_rule_gives_no_headers() -> None:
    """Where no rule matched, and where only shadow rules did, nothing is sent in any dialect."""
    nothing = Decision(True, Plan([]))
    watched = World(counter("watch", FixedWindow(1, 1_000_000), shadow=True)).decide()
    for dialect in DIALECTS:
        assert RateHeaders(dialect).block(nothing, START_US) == b""
        assert RateHeaders(dialect).block(watched, START_US) == b""


def test_off_still_sends_retry_after() -> None:
    """``off`` leaves out the rate fields only."""
    world = World(counter("one", FixedWindow(1, 60_000_000)))
    assert world.items("off") == {}
    assert list(world.items("off")) == ["Retry-After"]


def test_ietf_lists_every_enforced_policy() -> None:
    """Several policies stand in one structured list each; a shadow rule is not told."""
    daily = counter("daily", FixedWindow(1_000, 86_400_000_000))
    shadow = counter("watch", FixedWindow(1, 1_000_000), shadow=True)
    items = World(daily, API, shadow).items("ietf", 10)
    assert items["RateLimit-Policy"] == '"daily";q=1000;w=86400, "api";q=100;w=10'
    assert items["RateLimit"] == '"daily";r=990;t=85536, "api";r=90;t=9'
    assert set(items) == {"RateLimit", "RateLimit-Policy"}


def test_ietf_refusal_lists_only_the_refusing_rules() -> None:
    """Retry-After is never earlier than the end of an effective window that is told."""
    hourly = counter("hourly", FixedWindow(2, 3_600_000_000))
    world = World(API, LOGIN, hourly)
    world.decide()
    world.decide()
    items = world.items("ietf")
    assert items["RateLimit"] == f'"hourly";r=0;t={items["Retry-After"]}'
    assert items["RateLimit-Policy"].count(";q=") == 3


def test_ietf_full_bucket_has_the_whole_window() -> None:
    """A full bucket says t = w, so r/t is the quota's own rate."""
    charges = [(API, "s", 0)]
    answer = World(API).store.decide_one(charges, peek=True)
    items = dict(RateHeaders("ietf").items(Decision(True, Plan(charges), answer), START_US))
    assert items["RateLimit"] == '"api";r=100;t=10'


def test_ietf_does_not_end_before_the_quota_is_back() -> None:
    """The window of a nearly used up counter lasts until it is full: fewer tokens do not make it shorter."""
    assert World(API).items("ietf", 99)["RateLimit"] == '"api";r=1;t=10'
    assert World(API).items("ietf", 100)["RateLimit"] == '"api";r=0;t=10'


def test_ietf_rounds_shares_of_a_window_up() -> None:
    """A third of 3.000001 s is more than a second, and is told as two."""
    assert World(counter("third", TokenBucket(3, 3, 3_000_001))).items("ietf", 2)["RateLimit"] == '"third";r=1;t=3'
    charges = [(counter("odd", TokenBucket(3, 3, 3_000_001)), "s", 0)]
    verdict = Verdict(Outcome.ALLOWED, 1, 0, 0)
    decision = Decision(True, Plan(charges), None, False, None, *described(charges, verdict))
    assert dict(RateHeaders("ietf").items(decision, START_US))["RateLimit"] == '"odd";r=1;t=2'


def test_ietf_tells_no_numbers_it_does_not_know() -> None:
    """A rule that could not be decided and lets pass has a policy and no state, and a ban that was only looked at has none either."""
    for spec, verdict in (
        (FixedWindow(5, 60_000_000), Verdict(Outcome.UNDECIDED, 0, 0, 0)),
        (Ban(), Verdict(Outcome.ALLOWED, 0, 0, 0)),
    ):
        charges = [(counter("dark", spec), "s", 1)]
        decision = Decision(True, Plan(charges), None, False, None, *described(charges, verdict))
        items = dict(RateHeaders("ietf").items(decision, START_US))
        assert list(items) == ["RateLimit-Policy"]


def test_structured_integers_have_fifteen_digits_at_most() -> None:
    """What is larger than RFC 9651 lets an integer be is told as the largest."""
    charges = [(API, "s", 1)]
    summary, (result,) = described(charges, Verdict(Outcome.ALLOWED, 10**18 - 1, 0, 1))
    result = result._replace(limit=10**18)
    decision = Decision(True, Plan(charges), None, False, None, summary._replace(decisive=result), (result,))
    items = dict(RateHeaders("ietf").items(decision, START_US))
    assert items["RateLimit"].startswith('"api";r=999999999999999;t=')
    assert items["RateLimit-Policy"].startswith('"api";q=999999999999999;w=')


def described(charges: list[Charge], verdict: Verdict) -> tuple[Summary, tuple[RuleResult, ...]]:
    """What a decision says of a single charge with this verdict."""
    spec = charges[0][0].spec
    result = RuleResult(
        charges[0][0].name, verdict.outcome, spec.capacity, *verdict[1:], spec.window_us, spec.algorithm, False
    )
    summary = Summary(Outcome.ALLOWED, result, 0, verdict.reset_after_us, 0, None, (verdict,))
    return summary, (result,)


SPECS = [
    TokenBucket(100, 10, 1_000_000),
    TokenBucket(7, 7, 60_000_000),
    LeakyBucket(10, 5, 1_000_000),
    FixedWindow(5, 60_000_000),
    FixedWindow(1_000, 1_500_000),
    SlidingWindow(20, 60_000_000),
    SlidingWindow(20, 60_000_000, 6),
    SlidingLog(10, 10_000_000),
]


@given(
    spec=st.sampled_from(SPECS),
    steps=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 6)), min_size=1, max_size=25),
)
def test_ietf_never_implies_more_than_the_quota(spec: Spec, steps: list[tuple[int, int]]) -> None:
    """On every pass r/t <= q/w (with w in exact microseconds), t >= 1; on every refusal r = 0 and t = Retry-After."""
    world = World(counter("rule", spec))
    for wait_us, cost in steps:
        world.clock.advance(wait_us)
        items = world.items("x-ratelimit,ietf", cost)
        if "RateLimit" not in items:
            continue
        _, *parameters = items["RateLimit"].split(";")
        values = {name: int(value) for name, value in (p.split("=") for p in parameters)}
        if "Retry-After" in items:
            assert values == {"r": 0, "t": int(items["Retry-After"])}
        elif "t" in values:
            assert values["t"] >= 1
            assert values["r"] * spec.window_us <= values["t"] * 1_000_000 * spec.capacity
            assert values["r"] == int(items["X-RateLimit-Remaining"])


def test_legacy_writes_the_three_fields_and_the_policies() -> None:
    """Drafts 03 to 06: Limit, Remaining, Reset in delta seconds, and the enforced policies without names."""
    watch = counter("watch", FixedWindow(1, 1_000_000), shadow=True)
    assert World(API, watch, LOGIN).items("ietf-legacy") == {
        "RateLimit-Limit": "5",
        "RateLimit-Remaining": "4",
        "RateLimit-Reset": str(60 - START_US // 1_000_000 % 60),
        "RateLimit-Policy": "100;w=10, 5;w=60",
    }


def test_names_and_exposed_are_what_is_written() -> None:
    """What a gateway strips and exposes is what the dialects write; Retry-After is exposed and never stripped."""
    headers = RateHeaders("x-ratelimit,ietf")
    assert headers.names == {
        b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset", b"x-ratelimit-policy",
        b"ratelimit", b"ratelimit-policy",
    }  # fmt: skip
    assert headers.exposed.split(", ")[-1] == "Retry-After"
    assert {name.lower().encode() for name in headers.exposed.split(", ")} == headers.names | {b"retry-after"}
    assert RateHeaders("off").names == frozenset()


CONFLICTS = ({"x-ratelimit", "x-ratelimit-epoch"}, {"ietf", "ietf-legacy"})


@pytest.mark.parametrize(
    "dialects", [c for c in combinations(DIALECTS, 2) if "off" not in c and set(c) not in CONFLICTS]
)
def test_written_fields_are_exactly_the_names(dialects: tuple[str, str]) -> None:
    """Every combination that has no field twice writes exactly its ``names``."""
    headers = RateHeaders(dialects)
    items = World(API, LOGIN).items(",".join(dialects))
    assert {name.lower().encode() for name in items} == headers.names


@pytest.mark.parametrize("dialects", [sorted(pair) for pair in CONFLICTS])
def test_two_dialects_with_one_field_are_refused(dialects: list[str]) -> None:
    """A combination that would send a field twice, with two meanings, is a configuration error."""
    with pytest.raises(ConfigurationError, match="twice"):
        RateHeaders(dialects)


@pytest.mark.parametrize("bad", ["", "x", "x-ratelimit,", "off,ietf", "ietf,ietf", "X-RateLimit"])
def test_bad_dialects_are_refused(bad: str) -> None:
    """An unknown, doubled or contradictory choice is a configuration error naming the flag."""
    with pytest.raises(ConfigurationError, match="headers"):
        RateHeaders(bad)


def test_rule_name_cannot_break_a_header_line() -> None:
    """A name that no rule file could contain is made safe before it reaches a header."""
    evil = 'x"\r\nSet-Cookie: a=b; é'
    items = World(counter(evil, FixedWindow(5, 60_000_000))).items("x-ratelimit,ietf")
    assert set(items) == {
        "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Policy", "RateLimit", "RateLimit-Policy",
    }  # fmt: skip
    assert items["X-RateLimit-Policy"].startswith("x___Set-Cookie:_a_b___;q=5")


def test_block_is_ready_header_lines() -> None:
    """``block`` gives complete lines with CRLF, in ASCII."""
    block = RateHeaders().block(World(API).decide(), START_US)
    assert block.endswith(b"\r\n")
    assert block.count(b"\r\n") == 4
    assert block.startswith(b"X-RateLimit-Limit: 100\r\n")
