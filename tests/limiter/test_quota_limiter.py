"""Limiters made from a quota: keys, costs and the fast path."""

from __future__ import annotations

import asyncio

import pytest

from sluicegate.algorithms import Outcome
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts

BAD_COSTS = [0, -1, 1.0, 1.5, True, "1", None, 10**18, float("nan"), float("inf")]


def limiter_of(quota: str, algorithm: str = "token_bucket", **options) -> tuple[Limiter, ManualClock]:
    clock = ManualClock()
    return Limiter.from_quota(quota, algorithm, clock=clock, **options), clock


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"])
def test_a_quota_is_kept(algorithm: str) -> None:
    """Of 5 a minute, five calls pass, the sixth is refused with a wait, and asking again at its end passes."""
    limiter = Limiter.from_quota("5/minute", algorithm, clock=(clock := ManualClock(1_700_000_040_000_000)))
    if algorithm == "leaky_bucket":
        assert [limiter.check("k").delay_us for _ in range(1)] == [0]
        assert not limiter.check("k").allowed  # a delay of 12 s is more than the default of at most 1 s
        return
    assert [limiter.check("k").allowed for _ in range(6)] == [True] * 5 + [False]
    refused = limiter.check("k")
    assert refused.outcome is Outcome.DENIED
    assert refused.retry_after_us
    clock.advance(refused.retry_after_us - 1)
    assert not limiter.check("k").allowed
    clock.advance(1)
    assert limiter.check("k").allowed


def test_keys_do_not_share() -> None:
    """Each key has its own counter."""
    limiter, _ = limiter_of("1/minute")
    assert limiter.check("a")
    assert limiter.check("b")
    assert not limiter.check("a")


def test_several_limits_in_one_quota() -> None:
    """ "1/second; 3/hour" charges both limits or none, and the decision names the part that refused."""
    limiter, clock = limiter_of("1/second; 3/hour")
    allowed = 0
    for _ in range(6):
        allowed += limiter.check("k").allowed
        assert not limiter.check("k").allowed
        clock.advance(US_PER_S)
    assert allowed == 3
    assert limiter.check("k").rule == "quota#2"


def test_the_name_is_the_rule() -> None:
    """``name`` is what decisions say, so two limiters on one store count apart."""
    one, clock = limiter_of("1/minute", name="search")
    two = Limiter.from_quota("1/minute", store=one.store, clock=clock, name="login")
    assert one.check("k").rule == "search"
    assert two.check("k").allowed
    assert not one.check("k").allowed


@pytest.mark.parametrize("name", ["", "a b", "a#1", "-a", "é", "x" * 65, "a\nb", None])
def test_a_bad_name_fails_when_it_is_made(name: object) -> None:
    """A name that could not stand in a header or a metric is refused at construction."""
    with pytest.raises(ConfigurationError, match="name: "):
        limiter_of("1/minute", name=name)


def test_namespaces_do_not_share() -> None:
    """Two services on one store with the same rule and key have counters of their own."""
    one, clock = limiter_of("1/minute", namespace="shop")
    two = Limiter.from_quota("1/minute", store=one.store, clock=clock, namespace="blog")
    assert (one.check("k").allowed, two.check("k").allowed, one.check("k").allowed) == (True, True, False)


@pytest.mark.parametrize("cost", BAD_COSTS)
def test_a_bad_cost_is_refused(cost: object) -> None:
    """A cost that is no whole number from 1 up is an error naming ``cost``, in every form, and charges nothing."""
    limiter, _ = limiter_of("5/minute")
    for call in (
        lambda: limiter.check("k", cost),
        lambda: limiter.hit("k", cost),
        lambda: limiter.check_many([("k", cost)]),  # type: ignore[list-item]
        lambda: asyncio.run(limiter.acheck("k", cost)),
    ):
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert caught.value.field.endswith("cost")
    assert limiter.peek("k", 0).remaining == 5


def test_cost_0_is_for_peeks() -> None:
    """A peek of cost 0 describes the counter; it charges nothing and creates nothing."""
    limiter, _ = limiter_of("5/minute")
    limiter.check("k", 2)
    assert limiter.peek("k", 0).remaining == 3
    assert limiter.check("k", 0, peek=True).remaining == 3
    assert limiter.peek("new", 0).remaining == 5
    assert len(limiter.store) == 1  # type: ignore[arg-type]


def test_a_cost_above_the_capacity_never_fits() -> None:
    """A cost above the capacity is refused at once with no time to wait for, and takes nothing."""  # P09 T08
    limiter, _ = limiter_of("3/minute")
    decision = limiter.check("k", 5)
    assert (decision.outcome, decision.retry_after_us) == (Outcome.NEVER_FITS, None)
    assert limiter.peek("k").remaining == 3


@pytest.mark.parametrize("key", [None, 5, b"k", 1.5, "", ["k"], Facts(), {"user": "k"}, "k" * 70_000])
def test_what_is_no_key(key: object) -> None:
    """Only a non-empty text of bounded length is a key; nothing else ends up on a shared counter."""
    limiter, _ = limiter_of("5/minute")
    with pytest.raises(InvalidRequest) as caught:
        limiter.check(key)  # type: ignore[arg-type]
    assert caught.value.field == "key"
    with pytest.raises(InvalidRequest, match="key"):
        limiter.hit(key)  # type: ignore[arg-type]
    assert len(limiter.store) == 0  # type: ignore[arg-type]


def test_keys_of_every_kind_are_kept_apart() -> None:
    """Long keys, control characters, braces and separators neither collide nor break anything."""
    limiter, _ = limiter_of("1/minute")
    keys = ["a", "a ", "a\n", "a|b", "a%7Cb", "{a}", "a" * 200, "a" * 201, "é", "e\u0301", "\x00", "\ud800", "#", "*"]
    for _ in range(2):
        limiter.check_many([])
    assert [limiter.check(key).allowed for key in keys] == [True] * len(keys)
    assert [limiter.hit(key) for key in keys] == [False] * len(keys)


def test_hit_agrees_with_check() -> None:
    """``hit`` charges the same counter as ``check`` and says its ``allowed``."""
    limiter, clock = limiter_of("4/minute")
    assert [limiter.hit("k"), limiter.check("k").allowed, limiter.hit("k", 2), limiter.hit("k")] == [
        True,
        True,
        True,
        False,
    ]
    clock.advance(15 * US_PER_S)
    assert limiter.hit("k")
    assert not limiter.check("k").allowed


def test_hit_counts() -> None:
    """What ``hit`` decides is in the store's count of decisions, and its refusals in the limiter's."""
    limiter, _ = limiter_of("4/minute")
    for _ in range(7):
        limiter.hit("k")
    assert limiter.store.stats.decisions >= 7  # type: ignore[attr-defined]
    assert limiter.stats.refused == {("quota", Outcome.DENIED): 3}


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("5 per", "token_bucket"), "quota: "),
        (("5/minute", "token_buckets"), "token_buckets"),
        (("5/minute burst 10", "fixed_window"), "burst"),
        ((None, "token_bucket"), "quota: "),
        (("5/minute", "token_bucket", "redis://localhost?size=3"), "no parameter 'size'"),
    ],
)
def test_a_bad_quota_fails_when_it_is_made(arguments: tuple, words: str) -> None:
    """A quota, algorithm or store that cannot be used is a ConfigurationError at construction that shows it."""
    with pytest.raises(ConfigurationError, match=words):
        Limiter.from_quota(*arguments)


def test_an_unlimited_quota_allows() -> None:
    """ "unlimited" lets everything pass and keeps no counter; a ban lets nothing pass and keeps none either."""
    limiter, _ = limiter_of("unlimited")
    assert all(limiter.check("k").allowed and limiter.hit("k") for _ in range(10))
    banned, _ = limiter_of("0")
    assert not banned.check("k").allowed
    assert not banned.hit("k")
    assert len(limiter.store) == len(banned.store) == 0  # type: ignore[arg-type]


def test_a_new_quota_takes_effect_on_the_next_hit() -> None:
    """``apply`` changes the quota of a running limiter; used tokens stay used, and a kept ``hit`` follows."""  # P100
    limiter, _ = limiter_of("3/minute")
    kept = limiter.hit
    assert [kept("k") for _ in range(4)] == [True, True, True, False]
    limiter.apply("5/minute")
    assert limiter.version == 2
    assert [kept("k") for _ in range(3)] == [True, True, False]
    assert [limiter.hit("other") for _ in range(6)] == [True] * 5 + [False]


def test_a_bad_new_quota_changes_nothing() -> None:
    """``apply`` with what cannot be read raises and leaves the old quota in service."""
    limiter, _ = limiter_of("3/minute")
    for bad in ("5", "5/fortnight", limiter.ruleset):
        with pytest.raises(ConfigurationError):
            limiter.apply(bad)
    assert limiter.version == 1
    assert [limiter.hit("k") for _ in range(4)] == [True, True, True, False]


def test_the_switch_works_while_running() -> None:
    """``enabled = False`` lets everything pass and charges nothing, at once and for kept functions too."""  # P101
    limiter, _ = limiter_of("1/minute")
    kept = limiter.hit
    assert (kept("k"), kept("k")) == (True, False)
    limiter.enabled = False
    assert kept("k")
    assert limiter.check("k").allowed
    assert limiter.check("k").rule is None
    assert [d.allowed for d in limiter.check_many(["k", "k"])] == [True, True]
    assert limiter.peek("k").allowed
    assert limiter.stats.bypassed == 6
    limiter.enabled = True
    assert (kept("k"), limiter.hit("k"), limiter.check("k").allowed) == (False, False, False)


def test_reset_gives_a_fresh_start() -> None:
    """``reset`` forgets a key's counter and says how many there were."""
    limiter, _ = limiter_of("2/minute")
    limiter.check("k", 2)
    assert limiter.reset("k") == 1
    assert limiter.reset("k") == 0
    assert limiter.check("k").remaining == 1


def test_a_closed_limiter_fails_by_policy() -> None:
    """After ``close`` the failure policy decides: local by default, and the decision says it is degraded."""
    limiter, _ = limiter_of("2/minute")
    with limiter:
        assert limiter.check("k").allowed
    decisions = [limiter.check("k") for _ in range(3)]
    assert [(d.allowed, d.degraded) for d in decisions] == [(True, True), (True, True), (False, True)]
    assert limiter.hit("k") is False


async def test_gather_admits_exactly_the_limit() -> None:
    """1000 coroutines at once on a limit of 4 a day: exactly 4 pass."""  # P58
    limiter, _ = limiter_of("4/day")
    decisions = await asyncio.gather(*(limiter.acheck("k") for _ in range(1_000)))
    assert sum(decision.allowed for decision in decisions) == 4
