"""What operators do to counters: read, grant, reset, forget."""

import asyncio

import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import InvalidRequest, StoreError
from sluicegate.limiter.counters import SubjectOfRule
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.feed import ListEntry, SubjectEntry
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.flaky import FlakyStore
from sluicegate.testing.later import LaterStore

RULES = b"""
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - name: login
    match: {path: /login, methods: [POST]}
    per: user
    quota: 5/minute
    algorithm: fixed_window
  - name: api
    per: user
    quota: {free: 100/minute, paid: 1000/minute}
  - name: all
    scope: global
    quota: 100000/minute
  - name: trial
    mode: shadow
    per: user
    quota: 3/minute
"""
LOGIN = {"method": "POST", "path": "/login", "user": "8123"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter.from_rules(load_rules(RULES, "test"), clock=clock)


def used(limiter: Limiter, target: object = LOGIN) -> dict[str, int]:
    return {state.counter: state.used for state in limiter.read(target)}  # type: ignore[arg-type]


def test_read_tells_every_counter_and_charges_none(limiter: Limiter) -> None:
    """Every counter of the request with what is used of it, shadow ones included, as often as one likes."""
    limiter.check(LOGIN, 3)
    for _ in range(3):
        assert used(limiter) == {"login": 3, "api": 3, "all": 3, "trial": 3}
    _, login, api, trial = limiter.read(LOGIN)
    assert (login.rule, login.subject, login.limit, login.remaining, login.wait_us) == ("login", "user:8123", 5, 2, 0)
    assert 0 < login.full_after_us <= 60 * US_PER_S
    assert (api.algorithm, api.limit) == ("token_bucket", 100)
    assert trial.shadow


def test_read_says_when_one_more_passes(limiter: Limiter) -> None:
    """A counter that is used up says how long until one token passes."""
    limiter.check(LOGIN, 5)
    (login,) = limiter.read(LOGIN, rule="login")
    assert login.wait_us is not None
    assert 0 < login.wait_us <= 60 * US_PER_S


def test_read_creates_no_counter(limiter: Limiter) -> None:
    """Looking at a client that was never seen leaves nothing in the store."""
    assert set(used(limiter).values()) == {0}
    assert limiter.reset(LOGIN) == 0


def test_grant_fills_up_and_says_what_it_gave(clock: ManualClock) -> None:
    """Of 30 used of 100, a grant of 50 gives back 30 and the counter is full."""
    limiter = Limiter.from_quota("100/hour", clock=clock)
    limiter.check("k", 30)
    (state,) = limiter.grant("k", 50)
    assert (state.given, state.used, state.remaining) == (30, 0, 100)
    (state,) = limiter.grant("k", 50)
    assert state.given == 0


def test_a_rule_and_a_subject_name_counters(limiter: Limiter) -> None:
    """What is done by rule and subject concerns that rule only, and the counter that requests are charged to."""
    limiter.check(LOGIN, 5)
    target = SubjectOfRule("login", "user:8123")
    assert used(limiter, target) == {"login": 5}
    (state,) = limiter.grant(target, 2)
    assert state.given == 2
    assert used(limiter) == {"login": 3, "api": 5, "all": 5, "trial": 0}
    assert limiter.reset(target) == 1
    assert used(limiter)["login"] == 0
    assert used(limiter, SubjectOfRule("all", "*")) == {"all": 5}


def test_a_rule_narrows_facts(limiter: Limiter) -> None:
    """With a rule only its counters are read, granted and reset."""
    limiter.check(LOGIN, 5)
    assert [state.counter for state in limiter.read(LOGIN, rule="api")] == ["api"]
    assert limiter.reset(LOGIN, rule="api") == 1
    assert used(limiter) == {"login": 5, "api": 0, "all": 5, "trial": 0}


def test_the_tier_of_a_subject_is_known(limiter: Limiter) -> None:
    """A subject with a tier of its own has the numbers of that tier, unless another one is named."""
    limiter.subjects.put(SubjectEntry("user:8123", tier="paid"))
    (api,) = limiter.read(SubjectOfRule("api", "user:8123"))
    assert api.limit == 1000
    (api,) = limiter.read(SubjectOfRule("api", "user:8123", tier="free"))
    assert api.limit == 100


def test_an_override_is_kept_by_whoever_looks(limiter: Limiter) -> None:
    """The counter of a client with ten times the limit is read with that limit, and not cut to the usual one."""
    limiter.subjects.put(SubjectEntry("user:8123", factor_numerator=10))
    limiter.check(LOGIN, 40)
    for target in (LOGIN, SubjectOfRule("login", "user:8123")):
        login = limiter.read(target, rule="login")[0]
        assert (login.limit, login.used) == (50, 40)


def test_a_blocked_client_has_counters(limiter: Limiter) -> None:
    """What a client used is told while it is blocked, too."""
    limiter.check(LOGIN, 2)
    limiter.lists.put(ListEntry("block", "user", "8123"))
    assert used(limiter)["login"] == 2


@pytest.mark.parametrize(
    ("target", "rule", "field"),
    [
        (SubjectOfRule("nope", "user:1"), None, "rule"),
        (SubjectOfRule("login", ""), None, "subject"),
        (SubjectOfRule("login", "x" * 70_000), None, "subject"),
        (SubjectOfRule("login", "user:1", "gold"), None, "tier"),
        (LOGIN, "nope", "rule"),
        ({"colour": "red"}, None, "facts.colour"),
    ],
)
def test_what_cannot_be_meant_is_said(limiter: Limiter, target: object, rule: str | None, field: str) -> None:
    """An unknown rule or tier, a subject that is none and bad facts are told by their field."""
    for call in (limiter.read, limiter.reset):
        with pytest.raises(InvalidRequest) as found:
            call(target, rule=rule)  # type: ignore[arg-type, operator]
        assert found.value.field == field


@pytest.mark.parametrize("tokens", [0, -1, 10**13, True, "3"])
def test_grants_are_checked(limiter: Limiter, tokens: object) -> None:
    """A grant is of at least one token, and a whole number."""
    with pytest.raises(InvalidRequest, match="cost"):
        limiter.grant(LOGIN, tokens)  # type: ignore[arg-type]


def test_a_store_that_is_away_is_an_error(clock: ManualClock) -> None:
    """Unlike decisions, what operators do is not made up while the store is away."""
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_rules(load_rules(RULES, "test"), store, clock)
    store.down = True
    for call in (lambda: limiter.read(LOGIN), lambda: limiter.grant(LOGIN, 1), lambda: limiter.reset(LOGIN)):
        with pytest.raises(StoreError):
            call()


@pytest.mark.parametrize("named", [True, False], ids=["this client", "all clients"])
def test_forget_ends_what_the_fallback_remembers(clock: ManualClock, named: bool) -> None:
    """A client that used up its share during an outage is decided by the store alone once its counters are forgotten."""
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_rules(load_rules(RULES, "test"), store, clock)
    store.down = True
    limiter.check(LOGIN, 5)
    store.down = False
    clock.advance(US_PER_S)
    assert not limiter.check(LOGIN).allowed
    Limiter.from_rules(load_rules(RULES, "test"), store, clock).reset(LOGIN)
    assert not limiter.check(LOGIN).allowed
    limiter.forget(LOGIN if named else None)
    assert limiter.check(LOGIN).allowed


def test_coroutines_do_the_same(clock: ManualClock) -> None:
    """On a store that takes time the coroutines read, grant and reset as the calls do."""

    async def run() -> None:
        limiter = Limiter.from_rules(load_rules(RULES, "test"), LaterStore(MemoryStore(clock)), clock)
        await limiter.acheck(LOGIN, 4)
        assert [state.used for state in await limiter.aread(LOGIN)] == [4, 4, 4, 0]
        assert [state.given for state in await limiter.agrant(LOGIN, 3)] == [3, 3, 3, 0]
        assert await limiter.areset(SubjectOfRule("login", "user:8123")) == 1
        assert [state.used for state in await limiter.aread(LOGIN)] == [1, 0, 1, 0]

    asyncio.run(run())
