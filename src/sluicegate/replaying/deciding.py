"""Deciding requests at the times they carry, as a server with a memory store would have.

Two ways, one meaning. ``StoreDecider`` asks the memory store that servers use, under a clock that is set to each
request. ``CounterDecider`` is for the commonest question, one rule with one quota: it keeps one dict of states and asks
the algorithm alone, a third of the time. A property test holds the two equal.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from sluicegate.algorithms.spec import State
from sluicegate.bounds import REPLAY_COUNTERS_MAX, REPLAY_PURGE_MIN
from sluicegate.clock import ManualClock
from sluicegate.limiter.engine import Engine
from sluicegate.replaying.planner import Item, Planned
from sluicegate.replaying.request_line import Client
from sluicegate.rules.facts import Facts
from sluicegate.rules.match import in_order
from sluicegate.rules.model import Mode, OnMissing, RuleSet
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Charge, Counter
from sluicegate.stores.keys import EVERYBODY
from sluicegate.stores.memory import MemoryStore

__all__ = ["CounterDecider", "Noted", "Refusal", "RuleCounts", "Side", "StoreDecider"]

Noted = Sequence[tuple[Counter, str]]
"""The counters that would refuse one request, shadow ones included, in order of evaluation, each with its subject."""


class Refusal(NamedTuple):
    """One refused request of a batch: its place, and the counter that refused it first in order of evaluation."""

    place: int
    counter: Counter
    subject: str


class RuleCounts(NamedTuple):
    """What one rule did. ``also_refused``: it would have refused too, behind the rule that did."""

    matched: int
    refused: int
    also_refused: int
    shadow_refused: int


class _Tally:
    """Counts by rule. ``rule_of`` gives the name of the rule of a counter, which several counters may share.

    ``noted``: who refused a request, by its place; None where nobody reads it.
    """

    __slots__ = ("also_refused", "noted", "refused", "rule_of", "shadow_refused")

    def __init__(self, rule_of: Callable[[Counter], str]) -> None:
        self.rule_of = rule_of
        self.noted: dict[int, list[tuple[Counter, str]]] | None = None
        self.refused: Counts[str] = Counts()
        self.also_refused: Counts[str] = Counts()
        self.shadow_refused: Counts[str] = Counts()

    def refusal(self, place: int, refusing: Iterable[tuple[Counter, str]]) -> Refusal | None:
        """Count the counters that would refuse one request, in order of evaluation; None where all of them are shadow."""
        if self.noted is not None:
            refusing = list(refusing)
            self.noted.setdefault(place, []).extend(refusing)
        first: Refusal | None = None
        counted: set[str] = set()
        for counter, subject in refusing:
            name = self.rule_of(counter)
            if name not in counted:
                counted.add(name)
                if counter.shadow:
                    self.shadow_refused[name] += 1
                elif first is None:
                    first = Refusal(place, counter, subject)
                    self.refused[name] += 1
                else:
                    self.also_refused[name] += 1
        return first


class _Decider(Protocol):
    """Decides batches whose times never go back, across batches too."""

    @property
    def forgotten(self) -> int:
        """Live counters that were forgotten because there were too many."""
        ...

    def decide(self, items: Sequence[Item], tally: _Tally) -> list[Refusal]:
        """The refused requests in order; counts them, but not who matched."""
        ...


class Side:
    """One rule set that decides the log: its plans, its counters, its counts. ``notes``: ``noted`` tells of the last batch who refused what."""

    def __init__(self, ruleset: RuleSet, *, notes: bool = False) -> None:
        self.ruleset = ruleset
        self._engine = Engine(ruleset)
        self._groups: dict[tuple[Counter, ...], int] = {}
        self._matched: list[int] = []
        self._tally = _Tally(self._rule_of)
        self._decider: _Decider = CounterDecider() if _is_one_counter(ruleset) and not notes else StoreDecider()
        if notes:
            self._tally.noted = {}

    @property
    def forgotten(self) -> int:
        """Live counters that were forgotten because there were more than ``REPLAY_COUNTERS_MAX``."""
        return self._decider.forgotten

    @property
    def noted(self) -> Mapping[int, Noted]:
        """Of the last batch, the counters that would refuse a request, by its place."""
        return self._tally.noted or {}

    def rule_of(self, refusal: Refusal) -> str:
        """The rule a request was refused by."""
        return self._rule_of(refusal.counter)

    def plan(self, facts: Facts, client: Client) -> Planned:
        """The charges of a request. Raises InvalidRequest."""
        plan = self._engine.plan(facts)
        counters = (*(charge[0] for charge in plan.charges), *plan.unidentified)
        group = self._groups.setdefault(counters, len(self._groups))
        if group == len(self._matched):
            self._matched.append(0)
        return Planned(plan.charges, group, client, plan.unidentified, tier=plan.tier, cost=plan.cost)

    def decide(self, items: Sequence[Item]) -> list[Refusal]:
        """Decide a batch; the refused requests in order."""
        if self._tally.noted:
            self._tally.noted = {}
        matched = self._matched
        for _, planned in items:
            matched[planned.group] += 1
        return self._decider.decide(items, self._tally)

    def counts(self) -> dict[str, RuleCounts]:
        """What each rule did so far, in order of evaluation; rules that are off did nothing."""
        matched: Counts[str] = Counts()
        for counters, group in self._groups.items():
            for name in set(map(self._rule_of, counters)):
                matched[name] += self._matched[group]
        refused, also, shadow = self._tally.refused, self._tally.also_refused, self._tally.shadow_refused
        return {
            rule.name: RuleCounts(matched[rule.name], refused[rule.name], also[rule.name], shadow[rule.name])
            for rule in in_order(self.ruleset.rules)
        }

    def _rule_of(self, counter: Counter) -> str:
        return self._engine.rule_of(counter.name).name


class CounterDecider:
    """For requests of at most one charge, all by one spec; see ``_is_one_counter``."""

    def __init__(self) -> None:
        self._states: dict[str, State] = {}
        self._purge_at = REPLAY_PURGE_MIN
        self.forgotten = 0

    def decide(self, items: Sequence[Item], tally: _Tally) -> list[Refusal]:
        states = self._states
        state_of = states.get
        refusals: list[Refusal] = []
        counter: Counter | None = None
        for index, (now_us, planned) in enumerate(items):
            for counter, subject, cost in planned.charges:
                state = counter[1].admit(state_of(subject), now_us, cost)
                if state is None:
                    refusals.append(Refusal(index, counter, subject))
                else:
                    states[subject] = state
        if counter is not None:
            tally.refused[tally.rule_of(counter)] += len(refusals)
            if len(states) > self._purge_at:
                self._purge(counter, items[-1][0])
        return refusals

    def _purge(self, counter: Counter, now_us: int) -> None:
        """Forget what has expired, each time the table has doubled: two looks at each counter on average.

        A table that is still too large then loses its oldest counters, which may admit a client too much.
        """
        expires_us = counter.spec.expires_us
        states = {subject: state for subject, state in self._states.items() if expires_us(state) > now_us}
        surplus = len(states) - REPLAY_COUNTERS_MAX
        if surplus > 0:
            self.forgotten += surplus
            states = dict(list(states.items())[surplus:])
        self._states = states
        self._purge_at = max(REPLAY_PURGE_MIN, min(2 * len(states), REPLAY_COUNTERS_MAX + REPLAY_PURGE_MIN))


class StoreDecider:
    """For every rule set: the memory store, dated by the log."""

    def __init__(self) -> None:
        self._clock = ManualClock(0)
        self._store = MemoryStore(self._clock, max_counters=REPLAY_COUNTERS_MAX)
        self._now_us = 0

    @property
    def forgotten(self) -> int:
        """Live counters that were evicted."""
        return self._store.stats.evicted_live

    def decide(self, items: Sequence[Item], tally: _Tally) -> list[Refusal]:
        decide_one, set_clock, last_us = self._store.decide_one, self._clock.set, self._now_us
        refusals: list[Refusal] = []
        for index, (now_us, planned) in enumerate(items):
            if now_us != last_us:
                set_clock(now_us)
                last_us = now_us
            if planned.unidentified:
                refusal = tally.refusal(index, ((counter, EVERYBODY) for counter in planned.unidentified))
                if refusal is not None:
                    refusals.append(refusal)
                    continue
            charges = planned.charges
            if charges:
                answer = decide_one(charges)
                if not answer.unanimous:
                    assert isinstance(answer, StateAnswer)
                    refusal = tally.refusal(index, _refusing(charges, answer))
                    if refusal is not None:
                        refusals.append(refusal)
        self._now_us = last_us
        return refusals


def _refusing(charges: Sequence[Charge], answer: StateAnswer) -> Iterator[tuple[Counter, str]]:
    for (counter, subject, _), (_, passes) in zip(charges, answer.notes or (), strict=True):
        if not passes:
            yield counter, subject


def _is_one_counter(ruleset: RuleSet) -> bool:
    """Whether every request has at most one charge, by one spec, and a refusal changes nothing."""
    rules = [rule for rule in ruleset.rules if rule.mode is not Mode.OFF]
    if len(rules) != 1:
        return False
    rule = rules[0]
    specs = [quota.specs for quota in rule.quotas.values()]
    return (
        len(specs) == 1
        and len(specs[0]) == 1
        and rule.mode is Mode.ENFORCE
        and not rule.denied_counts
        and rule.per.on_missing is not OnMissing.DENY
    )
