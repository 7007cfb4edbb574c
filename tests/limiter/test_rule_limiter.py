"""Limiters with rules: facts, batches, several rules at once, change of rules, statistics."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sluicegate.algorithms import Outcome
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

RULES = """
version: 1
rules:
  - {name: everything, quota: 100/hour}
  - {name: api, match: {path: /api/**}, per: [ip], quota: 10/hour}
  - {name: login, match: {path: /api/login, methods: [POST]}, per: [ip], quota: 1/hour, algorithm: fixed_window}
"""
LOGIN = Facts(method="POST", path="/api/login", ip="203.0.113.9")
READ = Facts(method="GET", path="/api/items", ip="203.0.113.9")


def limiter_of(rules: str = RULES, **options) -> tuple[Limiter, ManualClock]:
    clock = ManualClock(1_700_000_040_000_000)
    return Limiter.from_rules(load_rules(rules, "rules.yaml"), clock=clock, **options), clock


def left(limiter: Limiter, facts: Facts) -> dict[str, int]:
    """What remains in each counter of these facts."""
    return {result.rule: result.remaining for result in limiter.peek(facts, 0).results}


def test_a_refusal_charges_nobody() -> None:
    """Five logins against 1/hour charge the outer limits once: a refusal takes nothing anywhere."""
    # T01 T05 T06 P10
    limiter, _ = limiter_of()
    assert [limiter.check(LOGIN).allowed for _ in range(5)] == [True, False, False, False, False]
    assert left(limiter, LOGIN) == {"everything": 99, "api": 9, "login": 0}


def test_the_outer_rule_refusing_charges_no_inner_one() -> None:
    """Where the first rule of three refuses, the rules after it keep their tokens too."""
    limiter, _ = limiter_of(RULES.replace("100/hour", "2/hour"))
    assert [limiter.check(READ).allowed for _ in range(4)] == [True, True, False, False]
    assert left(limiter, LOGIN) == {"everything": 0, "api": 8, "login": 1}


def test_the_first_refusing_rule_is_named_and_the_longest_wait_given() -> None:
    """``rule`` is the first refusing rule in order, ``retry_after`` the longest wait of all that refuse."""
    limiter, _ = limiter_of(
        """
        version: 1
        rules:
          - {name: short, quota: 1/second}
          - {name: long, quota: 1/hour}
        """
    )
    limiter.check(Facts())
    decision = limiter.check(Facts())
    assert (decision.rule, decision.retry_after_us) == ("short", 3_600 * US_PER_S)


def test_shadow_rules_are_counted_and_refuse_nobody() -> None:
    """A shadow rule refuses nobody; what it would have refused is counted under its name."""
    limiter, _ = limiter_of(RULES.replace("quota: 1/hour,", "quota: 1/hour, mode: shadow,"))
    assert all(limiter.check(LOGIN).allowed for _ in range(3))
    assert limiter.stats.shadow_refused == {"login": 2}
    assert limiter.stats.allowed == 3


def test_facts_may_be_a_dict() -> None:
    """A dict with the fields of Facts is the same as Facts."""
    limiter, _ = limiter_of()
    assert limiter.check({"method": "POST", "path": "/api/login", "ip": "203.0.113.9"}).allowed
    assert not limiter.check(LOGIN).allowed


@pytest.mark.parametrize(
    "facts, field",
    [
        ({"pth": "/"}, "facts.pth"),
        ({"ip": 5}, "facts.ip"),
        ({"headers": ["a"]}, "facts.headers"),
        ({"ip": "not an address", "path": "/api/x"}, "facts.ip"),
        ({5: "x"}, "facts.5"),
        ("user:1", "facts"),
        (None, "facts"),
        (["path"], "facts"),
    ],
)
def test_bad_facts_are_named(facts: object, field: str) -> None:
    """What is no Facts, and every unknown or ill-typed field of a dict, is an InvalidRequest naming it."""
    limiter, _ = limiter_of()
    with pytest.raises(InvalidRequest) as caught:
        limiter.check(facts)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert limiter.peek(Facts(), 0).remaining == 100


def test_check_many_is_one_call_in_order() -> None:
    """A batch is decided in order by one call of the store, with a cost per item, matched or not."""

    class CountingStore:
        def __init__(self, store) -> None:
            self.store, self.calls = store, 0

        def __getattr__(self, name: str):
            self.calls += 1
            return getattr(self.store, name)

    inner, clock = limiter_of()
    store = CountingStore(inner.store)
    limiter = Limiter.from_rules(
        load_rules(RULES.replace("- {name: everything, quota: 100/hour}", ""), "r"), store, clock
    )
    store.calls = 0
    decisions = limiter.check_many(
        [LOGIN, LOGIN, Facts(path="/other"), (READ, 8), {"path": "/api/x", "ip": "203.0.113.9"}]
    )
    assert store.calls == 1
    assert [d.allowed for d in decisions] == [True, False, True, True, True]
    assert [d.rule for d in decisions] == ["login", "login", None, "api", "api"]
    assert decisions[4].remaining == 0
    assert limiter.stats.decisions == {("", "allowed"): 4, ("login", "denied"): 1}


def test_a_bad_item_spoils_the_batch_before_it_is_charged() -> None:
    """One item that cannot be decided raises an error with its place, and nothing of the batch is charged."""
    limiter, _ = limiter_of()
    with pytest.raises(InvalidRequest) as caught:
        limiter.check_many([READ, READ, (READ, -1)])
    assert caught.value.field == "requests[2].cost"
    assert left(limiter, READ)["api"] == 10
    with pytest.raises(InvalidRequest, match="at most 1000"):
        limiter.check_many([READ] * 1_001)


async def test_acheck_is_check() -> None:
    """The coroutine form charges the same counters and takes the same options."""
    limiter, _ = limiter_of()
    assert (await limiter.acheck(LOGIN, receipt=True)).decision_id
    assert not (await limiter.acheck(LOGIN, peek=True)).allowed
    assert not limiter.check(LOGIN).allowed


def test_new_rules_are_live_and_counters_stay() -> None:
    """A raised limit helps at once and what was used stays used; unchanged rules change nothing."""  # T101 P100
    limiter, _ = limiter_of()
    limiter.check(LOGIN)
    limiter.apply(load_rules(RULES, "rules.yaml", version=2))
    assert limiter.version == 2
    assert left(limiter, LOGIN) == {"everything": 99, "api": 9, "login": 0}
    limiter.apply(load_rules(RULES.replace("quota: 1/hour", "quota: 3/hour"), "rules.yaml", version=3))
    assert [limiter.check(LOGIN).allowed for _ in range(3)] == [True, True, False]
    assert limiter.check(LOGIN).version == 3
    assert limiter.stats.applies == 2


def test_rules_that_cannot_be_served_leave_the_old_ones(tmp_path: Path) -> None:
    """Where the new rules name a file that is not there, ``apply`` raises and the old rules stay."""
    limiter, _ = limiter_of(base_dir=tmp_path)
    resolver = limiter.resolver
    broken = load_rules(
        "version: 1\nidentity: {api_key: {keys: missing.txt}}\nrules: [{name: a, per: [ip], quota: 1/hour}]\n", "r.yaml"
    )
    with pytest.raises(ConfigurationError):
        limiter.apply(broken)
    assert limiter.resolver is resolver
    assert limiter.check(LOGIN).allowed
    with pytest.raises(ConfigurationError, match="takes a RuleSet"):
        limiter.apply("5/minute")


def test_from_file(tmp_path: Path) -> None:
    """A file is read once, relative paths in it are relative to it, and what is wrong with it is said."""
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    limiter = Limiter.from_file(path, "memory://?max_counters=50")
    assert [limiter.check(LOGIN).allowed for _ in range(2)] == [True, False]
    assert limiter.store.max_counters == 50  # type: ignore[attr-defined]
    path.write_text(RULES.replace("quota", "qutoa"))
    with pytest.raises(ConfigurationError, match="quota"):
        Limiter.from_file(path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        Limiter.from_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match="cannot read"):
        Limiter.from_file(tmp_path)


def test_statistics() -> None:
    """Allowed, unmatched, refused by rule and outcome, peeks and applies are counted; peeks count as nothing else."""
    limiter, _ = limiter_of(RULES.replace("- {name: everything, quota: 100/hour}", ""))
    limiter.check(LOGIN)
    limiter.check(LOGIN)
    limiter.check(LOGIN, 5)
    limiter.check(Facts(path="/elsewhere"))
    limiter.peek(LOGIN)
    stats = limiter.stats
    assert (stats.allowed, stats.unmatched, stats.peeks) == (2, 1, 1)
    assert stats.refused == {("login", Outcome.DENIED): 1, ("login", Outcome.NEVER_FITS): 1}
    assert stats.decisions == {("", "allowed"): 2, ("login", "denied"): 1, ("login", "never_fits"): 1}


def test_hit_works_with_rules_too() -> None:
    """On a limiter with rules ``hit`` is ``check(...).allowed``."""
    limiter, _ = limiter_of()
    assert [limiter.hit(LOGIN) for _ in range(2)] == [True, False]  # type: ignore[arg-type]


def test_reset_forgets_every_counter_of_the_facts() -> None:
    """``reset`` takes facts and forgets the counters they would be charged to."""
    limiter, _ = limiter_of()
    limiter.check(LOGIN)
    assert limiter.reset(LOGIN) == 3
    assert limiter.check(LOGIN).allowed


def test_pickling_says_what_to_do() -> None:
    """A limiter cannot be pickled, and the error says to make one in each process."""  # P66
    limiter, _ = limiter_of()
    with pytest.raises(TypeError, match="Make one in each process"):
        pickle.dumps(limiter)


def test_repr_tells_rules_and_store() -> None:
    """The repr names the number of rules, their version and the store."""
    limiter, _ = limiter_of()
    assert repr(limiter) == "<Limiter 3 rules version=1 store=MemoryStore(0 of 1048576 counters)>"
