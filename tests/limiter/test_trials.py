"""Rollouts in the decision path: who meets which version, what it is counted by, and what a whole rollout can admit."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_fields

from sluicegate.algorithms.spec import OnChange
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter.engine import Engine
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.effective import effective
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import Candidate, Pause, RulesDocument
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import RuleSet
from sluicegate.rules.trials import bucket_of
from sluicegate.stores.base import Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import RedisStore
from sluicegate.testing.intervals import worst_excess

SALT = "5f0c"
STEPS = (0, 100, 1_000, 5_000, 10_000)


def rules(*lines: str) -> RuleSet:
    return load_rules("version: 1\nrules:\n" + "".join(f"  - {{{line}}}\n" for line in lines), "rules.yaml")


def trial(basis_points: int, kind: str = "canary", nodes: tuple[str, ...] = ()) -> Candidate:
    return Candidate(3, kind, RulesDocument(8, "", {}), SALT, basis_points, nodes)  # type: ignore[arg-type]


def on_trial(old: RuleSet, new: RuleSet, basis_points: int, node: str = "n1", **how: Any) -> RuleSet:
    return effective(old, new, trial(basis_points, **how), (), node, 0).ruleset


def user_in(low: int, high: int) -> str:
    """A user whose bucket lies in ``low..high``."""
    return next(str(n) for n in range(100_000) if low <= bucket_of(SALT, f"user:{n}") < high)


def names(engine: Engine, **facts: Any) -> list[str]:
    return [counter.name for counter, _, _ in engine.plan(Facts(**facts)).charges]


OLD = rules("name: api, per: [user], quota: 10/minute", "name: floor, quota: 1000/minute")
NEW = rules("name: api, per: [user], quota: 20/minute", "name: floor, quota: 1000/minute")


def test_each_client_meets_one_version() -> None:
    """Below the basis points the new version decides, from there on the old one, and other rules stay as they are."""
    engine = Engine(on_trial(OLD, NEW, 1_000))
    assert names(engine, user=user_in(999, 1_000)) == ["floor", "api@canary"]
    assert names(engine, user=user_in(1_000, 1_001)) == ["floor", "api"]
    assert names(engine) == ["floor"]


def test_both_versions_charge_one_counter() -> None:
    """A client that crosses over keeps what it used, forwards and back: the key does not name the version."""
    clock, client = ManualClock(), user_in(0, 5_000)
    limiter = Limiter.from_rules(on_trial(OLD, NEW, 0), clock=clock)
    assert [limiter.check({"user": client}).remaining for _ in range(7)][-1] == 3
    limiter.apply(on_trial(OLD, NEW, 5_000))
    decision = limiter.check({"user": client})
    assert (decision.rule, decision.limit, decision.remaining) == ("api@canary", 20, 12)
    limiter.apply(OLD)
    decision = limiter.check({"user": client})
    assert (decision.rule, decision.limit, decision.remaining) == ("api", 10, 1)


def test_a_named_node_counts_apart() -> None:
    """A named node judges by the candidate on counters of its own: the counters that other nodes judge are not touched."""
    limiter = Limiter.from_rules(OLD, clock=ManualClock())
    named = on_trial(OLD, NEW, 0, node="n2", nodes=("n2",))
    other = Limiter.from_rules(named, store=limiter.store, clock=limiter.clock)
    assert sum(other.check({"user": "u"}).allowed for _ in range(50)) == 20
    assert limiter.check({"user": "u"}).remaining == 9


def test_a_shadow_counts_and_never_refuses() -> None:
    """A stricter candidate as shadow refuses nobody; what it would have refused is told by rule and client (T72)."""
    stricter = rules("name: api, per: [user], quota: 2/minute", "name: floor, quota: 1000/minute")
    limiter = Limiter.from_rules(on_trial(OLD, stricter, 0, kind="shadow"), clock=ManualClock())
    assert all(limiter.check({"user": "u"}).allowed for _ in range(5))
    assert limiter.check({"user": "u"}).rule == "api"
    counts = limiter.stats.rule_counts()
    assert (counts["api@shadow"].matched, counts["api@shadow"].shadow_refused) == (6, 4)
    assert (counts["api"].matched, counts["api"].refused) == (6, 0)
    assert limiter.stats.offenders.take() == [("api@shadow", "user:u", 4)]


def test_what_applied_is_counted_for_both_versions() -> None:
    """Decisions are counted for the version that applied, in batches too; peeks, resets and explanations are not."""
    new = rules("name: api, per: [user], quota: 20/minute, on_missing: deny", "name: floor, quota: 1000/minute")
    limiter = Limiter.from_rules(on_trial(OLD, new, 5_000), clock=ManualClock())
    inside, outside = Facts(user=user_in(0, 5_000)), Facts(user=user_in(5_000, 10_000))
    limiter.check_many([inside, outside, outside])
    limiter.check(outside)
    limiter.check({})
    limiter.peek(inside)
    limiter.reset(outside)
    limiter.engine.explain(inside)
    counts = limiter.stats.rule_counts()
    assert {name: row.matched for name, row in counts.items()} == {"api": 3, "api@canary": 1}
    limiter.apply(on_trial(OLD, new, 10_000))
    limiter.check({})
    assert limiter.stats.rule_counts()["api@canary"].matched == 2


def test_explain_tells_the_arm() -> None:
    """Each version says in which bucket the client is, and the one that is not for it says that."""
    client = user_in(1_234, 1_235)
    old, new = (
        {one.rule: one for one in Engine(on_trial(OLD, NEW, 2_000)).explain(Facts(user=client))}[name]
        for name in ("api", "api@canary")
    )
    assert (new.reason, new.arm) == ("", "bucket 1234 of 10000, inside the first 2000")
    assert new.subject == f"user:{client}"
    assert old.reason == "not for this client in rollout 3: bucket 1234 of 10000, inside the first 2000"
    assert (old.matched, old.subject) == (True, None)
    unknown = next(one for one in Engine(on_trial(OLD, NEW, 2_000)).explain(Facts()) if one.rule == "api@canary")
    assert "no client is known" in unknown.reason


def test_a_pause_frees_a_rule_until_its_end() -> None:
    """A paused rule charges and refuses nothing in either version; afterwards its counters are as they were."""
    clock = ManualClock(0)
    limiter = Limiter.from_rules(OLD, clock=clock)
    assert sum(limiter.check({"user": "u"}).allowed for _ in range(12)) == 10
    pause = Pause("api", 60 * US_PER_S)
    paused = effective(OLD, NEW, trial(5_000), (pause,), "n1", 0)
    limiter.apply(paused.ruleset)
    assert sum(limiter.check({"user": "u"}).allowed for _ in range(12)) == 12
    clock.advance(6 * US_PER_S)
    limiter.apply(effective(OLD, None, None, (pause,), "n1", 60 * US_PER_S).ruleset)
    assert sum(limiter.check({"user": "u"}).allowed for _ in range(12)) == 1


PERS = (
    "per: [user]",
    "per: [ip]",
    "per: {first_of: [api_key, user, ip]}",
    "per: [user, endpoint]",
    "per: [user, host], on_missing: ip",
    "per: [user, ip], on_missing: deny",
    "per: {first_of: [user, endpoint]}",
    "match: {path: [/a/*, /b]}, per: [user, endpoint]",
    "match: {path: [/a/1, /b]}, per: [user, endpoint]",
    "per: [endpoint]",
)
SOME = st.none() | st.sampled_from(["1", "2", "3", "4"])


@settings(max_examples=400)
@given(
    old=st.sampled_from(PERS),
    new=st.sampled_from(PERS),
    basis_points=st.integers(0, 10_000),
    user=SOME,
    key=SOME,
    host=st.sampled_from([None, "a.test"]),
    path=st.sampled_from(["/a/1", "/b", "/c"]),
    route=st.sampled_from([None, "/r/{id}"]),
)
def test_one_request_is_never_charged_by_both_versions(
    old: str, new: str, basis_points: int, user: str, key: str, host: str, path: str, route: str
) -> None:
    """Whatever the two versions count by, at most one of them has a part in a request; where both match, exactly one."""
    before = rules(f"name: r, {old}, quota: 10/minute")
    after = rules(f"name: r, {new}, quota: 11/minute")
    facts = Facts(user=user, api_key=key, ip="10.0.0.1", host=host, method="GET", path=path, route=route)

    def parts(ruleset: RuleSet) -> list[str]:
        plan = Engine(ruleset).plan(facts)
        return [counter.name for counter in (*plan.unidentified, *(charge[0] for charge in plan.charges))]

    found = parts(on_trial(before, after, basis_points))
    assert len(found) <= 1
    if parts(before) and parts(after):
        assert len(found) == 1


@settings(max_examples=200)
@given(
    old=st.sampled_from(PERS),
    new=st.sampled_from(PERS),
    basis_points=st.integers(1, 9_999),
    requests=st.lists(st.tuples(SOME, SOME, st.sampled_from([None, "a.test"]), SOME), min_size=2, max_size=12),
)
def test_one_counter_is_judged_by_one_version(
    old: str, new: str, basis_points: int, requests: list[tuple[str | None, ...]]
) -> None:
    """At one step of a rollout no counter is judged by the old numbers for one request and by the new ones for another."""
    before = rules(f"name: r, {old}, quota: 10/minute")
    engine = Engine(on_trial(before, rules(f"name: r, {new}, quota: 11/minute"), basis_points))
    judged: dict[tuple[str, str], str] = {}
    for user, key, host, ip in requests:
        facts = Facts(user=user, api_key=key, host=host, ip=f"10.0.0.{ip or 9}", method="GET", path="/b")
        for counter, subject, _ in engine.plan(facts).charges:
            assert judged.setdefault((counter.prefix, subject), counter.name) == counter.name


@pytest.fixture(params=["memory", "redis"])
def store_on(request: pytest.FixtureRequest, servers, require_program) -> Iterator[Callable[[ManualClock], Store]]:
    """Makes a store that keeps the given time: in this process, or a real server."""
    with contextlib.ExitStack() as stack:

        def make(clock: ManualClock) -> Store:
            if request.param == "memory":
                return MemoryStore(clock)
            store = RedisStore(servers.empty("redis", require_program).url, time_source=clock)
            stack.callback(store.close)
            return store

        yield make


@pytest.mark.parametrize("how", list(OnChange))
@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_window", "strict", "sliding_log"])
@pytest.mark.parametrize("old, new", [(4, 9), (9, 4)])
def test_a_whole_rollout_decides_as_each_client_alone(
    store_on: Callable[[ManualClock], Store], old: int, new: int, algorithm: str, how: OnChange
) -> None:
    """0, 1, 10, 50, 100 % and promoted: every decision is that of a counter which changes its numbers once, when its client crosses.

    With ``keep`` no client is ever admitted more in any interval than the larger of the two limits allows.
    """
    kind = "algorithm: sliding_window, strict: true" if algorithm == "strict" else f"algorithm: {algorithm}"
    line = "name: r, per: [user], quota: {}/minute, {}, on_change: {}"
    before, after = (rules(line.format(count, kind, how)) for count in (old, new))
    specs = [ruleset.rules[0].quotas[None].specs[0] for ruleset in (before, after)]
    sets = [*(on_trial(before, after, step) for step in STEPS), after]
    source, clock = random.Random(f"{old}{algorithm}{how}"), ManualClock(1_700_000_000_000_000)
    limiter = Limiter.from_rules(before, store_on(clock), clock)
    clients = [str(n) for n in range(40)]
    state: dict[str, Any] = dict.fromkeys(clients)
    judged_by = dict.fromkeys(clients, 0)
    history: dict[str, list[tuple[int, int]]] = {client: [] for client in clients}
    crossed = 0
    for place, ruleset in enumerate(sets):
        limiter.apply(ruleset)
        share = STEPS[place] if place < len(STEPS) else 10_000
        for _ in range(900 if isinstance(limiter.store, MemoryStore) else 300):
            clock.advance(source.randrange(200_000))
            client, now_us = source.choice(clients), clock.now_us()
            version = int(bucket_of(SALT, f"user:{client}") < share)
            spec = specs[version]
            if version != judged_by[client]:
                crossed += 1
                judged_by[client] = version
                if state[client] is not None:
                    state[client] = spec.carry(specs[1 - version], state[client], now_us, how)
            after_charge = spec.admit(state[client], now_us, 1)
            allowed = limiter.check({"user": client}).allowed
            assert allowed == (after_charge is not None)
            state[client] = state[client] if after_charge is None else after_charge
            history[client].append((now_us, int(allowed)))
    assert crossed == len(clients)
    if how is OnChange.KEEP:
        excesses = [worst_excess(hits, _larger(specs)) for hits in history.values()]
        assert excesses == [None] * len(clients)


class Told:
    """A node that holds what it was told last, and remakes its rules when their time comes."""

    def __init__(self, before: RuleSet, after: RuleSet, store: Store, clock: ManualClock) -> None:
        self.sets, self.clock = (before, after), clock
        self.limiter = Limiter.from_rules(before, store, clock)
        self.step: Candidate | None = None
        self.changes_at_us: int | None = None

    def tell(self, step: Candidate) -> None:
        self.step = step
        found = effective(*self.sets, step, (), "n", self.clock.now_us())
        self.changes_at_us = found.changes_at_us
        self.limiter.apply(found.ruleset)

    def check(self, client: str) -> bool:
        if self.step is not None and self.changes_at_us is not None and self.clock.now_us() >= self.changes_at_us:
            self.tell(self.step)
        return self.limiter.check({"user": client}).allowed


@pytest.mark.parametrize("ahead_us, exact", [(2 * US_PER_S, True), (0, False)])
def test_a_step_told_ahead_frees_nothing_on_two_nodes(ahead_us: int, exact: bool) -> None:
    """Nodes that hear of a step at different times and take it at one moment keep each client's bound, asked in turns.

    Without that moment a client that asks both in turns meets two numbers, and exceeds it.
    """
    before, after = (rules(f"name: r, per: [user], quota: {count}/minute") for count in (12, 4))
    specs = [ruleset.rules[0].quotas[None].specs[0] for ruleset in (before, after)]
    clock = ManualClock()
    store = MemoryStore(clock)
    nodes = [Told(before, after, store, clock) for _ in range(2)]
    clients = [str(number) for number in range(10)]
    history: dict[str, list[tuple[int, int]]] = {client: [] for client in clients}
    for share_before, share in pairwise(STEPS):
        told_us = clock.now_us()
        step = replace_fields(trial(share), before_basis_points=share_before, from_us=told_us + ahead_us)
        for turn in range(300):
            # One node hears of it after a tenth of a second, the other after nine tenths.
            for place, after_us in enumerate((100_000, 900_000)):
                if nodes[place].step is not step and clock.now_us() >= told_us + after_us:
                    nodes[place].tell(step)
            for client in clients:
                history[client].append((clock.now_us(), int(nodes[turn % 2].check(client))))
            clock.advance(20_000)
    excesses = [worst_excess(hits, _larger(specs)) for hits in history.values()]
    assert all(excess is None for excess in excesses) is exact


def _larger(specs: list[Any]) -> Callable[[int], int]:
    return lambda interval_us: max(spec.most_admitted(interval_us) for spec in specs)
