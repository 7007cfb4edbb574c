"""What a replay decided, as the batches that a node would have told of: a batch a minute of the log, at the log's own times.

A batch is made of the minute's decisions alone, so the same log under the same rules makes the same batches with the same ids, and a home
that has them counts nothing twice. What clients are called is not part of an id.

A minute that ends in the middle of a log which goes on later is another minute when the longer log is replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from sluicegate.algorithms.space_saving import SpaceSaving
from sluicegate.bounds import (
    REFUSALS_TOLD_MAX,
    REPLAY_RECORDED_CLIENTS_MAX,
    REPLAY_RECORDED_CLIENTS_TOLD,
    SAMPLES_TOLD_MAX,
)
from sluicegate.clock import US_PER_S
from sluicegate.events import (
    ALLOWED,
    ASKED,
    DENIED,
    NEVER_FITS,
    REFUSED,
    SCHEMA_VERSION,
    SHADOW_DENIED,
    UNMATCHED,
    Batch,
    DecisionSample,
    RequestCount,
    RuleCount,
    SubjectCount,
    SubjectTotal,
    encode,
)
from sluicegate.limiter.recording.demand import DemandBook
from sluicegate.limiter.recording.following import digest_of
from sluicegate.replaying.deciding import Noted
from sluicegate.replaying.planner import Item, Planned
from sluicegate.stores.keys import EVERYBODY

__all__ = ["NODE", "Recording"]

NODE: Final = "replay"
"""The node that the batches are of."""

_MINUTE_US: Final = 60 * US_PER_S
_EVERY_RULE: Final = ""


class _Asked(NamedTuple):
    """What is the same of all requests with one plan. ``rules``: (name, cost); ``clients``: (rule, subject, cost), overall ones left out."""

    tier: str
    cost: int
    rules: tuple[tuple[str, int], ...]
    clients: tuple[tuple[str, str, int], ...]


class _Sampled:
    """At most ``most`` of the decisions of a sort, evenly from all of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._stride = 1
        self._kept: list[DecisionSample] = []
        self._seen = 0

    def add(self, make: Callable[[], DecisionSample]) -> None:
        if self._seen % self._stride == 0:
            if len(self._kept) >= self._most:
                self._kept = self._kept[::2]
                self._stride *= 2
            if self._seen % self._stride == 0:
                self._kept.append(make())
        self._seen += 1

    def told(self) -> list[DecisionSample]:
        rate = len(self._kept) / self._seen if self._seen else 1.0
        return [msgspec.structs.replace(sample, sample_rate=rate) for sample in self._kept]


class _Minute:
    """The decisions of one minute, in bounded memory but for the mixes of rules, tier and cost that there were."""

    def __init__(self, at_us: int) -> None:
        self.at_us = at_us
        self.requests: dict[tuple[str, str, str], list[int]] = {}
        self.rules: dict[tuple[str, str, str], list[int]] = {}
        self.totals: dict[tuple[str, str], int] = {}
        self.clients: dict[tuple[str, str], SpaceSaving[str]] = {}
        self.refusals = _Sampled(REFUSALS_TOLD_MAX)
        self.allowed = _Sampled(SAMPLES_TOLD_MAX)

    def client(self, rule: str, kind: str, subject: str) -> None:
        """A client asked, or was refused."""
        seen = self.clients.get((rule, kind))
        if seen is None:
            seen = self.clients[rule, kind] = SpaceSaving(REPLAY_RECORDED_CLIENTS_MAX)
        seen.add(subject)

    def total(self, rule: str, kind: str) -> None:
        """Such an event, whether or not a client is known."""
        self.totals[rule, kind] = self.totals.get((rule, kind), 0) + 1


class Recording:
    """Takes decided batches, whose times never go back, and gives a batch to ``keep`` for each minute that is over.

    ``rules``: whatever tells these rules from others, for the ids. ``name_of``: what a subject is told as. ``batches``, ``decisions``: given to ``keep``.
    """

    def __init__(
        self, rules: bytes, version: int, name_of: Callable[[str], str], keep: Callable[[Batch], None]
    ) -> None:
        self._rules = hashlib.sha256(rules).digest()
        self._version = version
        self._name_of = name_of
        self._keep = keep
        self._minute: _Minute | None = None
        self._second = -1
        self._demand = DemandBook()
        self._known: dict[int, tuple[Planned, _Asked]] = {}
        self.batches = self.decisions = 0

    def add(self, items: Sequence[Item], noted: Mapping[int, Noted]) -> None:
        """Decided requests in order; ``noted``: the counters that would refuse one, by its place."""
        minute = self._minute
        for place, (time_us, planned) in enumerate(items):
            now_us = max(0, time_us)
            if minute is None or now_us >= minute.at_us + _MINUTE_US:
                self.finish()
                minute = self._minute = _Minute(now_us // _MINUTE_US * _MINUTE_US)
            if now_us // US_PER_S != self._second:
                self._second = now_us // US_PER_S
                self._demand.take(minute.at_us, self._second * US_PER_S, str, last=False)
            self._count(minute, now_us, planned, noted.get(place, ()))
        self._known.clear()

    def finish(self) -> None:
        """Tell of the minute that is not over yet, if there is one."""
        minute, self._minute = self._minute, None
        if minute is None:
            return
        plain = self._batch(minute)
        digest = hashlib.sha256(self._rules + encode(plain)).hexdigest()[:32]
        self.batches += 1
        self.decisions += plain.decided
        self._keep(self._named(plain, f"{NODE}/{digest}/{minute.at_us // _MINUTE_US}"))

    def _count(self, minute: _Minute, now_us: int, planned: Planned, refusing: Noted) -> None:
        asked = self._asked(planned)
        outcomes = _outcomes(planned, refusing)
        rule = next((name for name, outcome in outcomes.items() if outcome in {DENIED, NEVER_FITS}), "")
        outcome = outcomes[rule] if rule else ALLOWED if asked.rules else UNMATCHED
        _add(minute.requests, (rule, outcome, asked.tier), asked.cost)
        for name, cost in asked.rules:
            _add(minute.rules, (name, outcomes.get(name, ALLOWED), asked.tier), cost)
            minute.total(name, ASKED)
        minute.total(_EVERY_RULE, ASKED)
        for name, subject, cost in asked.clients:
            minute.client(name, ASKED, subject)
            digest = digest_of(subject)
            if digest < self._demand.limit:
                self._demand.ask((name, asked.tier, subject), digest, now_us, cost, refused=name in outcomes)
        for subject in {subject for _, subject, _ in asked.clients}:
            minute.client(_EVERY_RULE, ASKED, subject)
        told = set()
        for counter, subject in refusing:
            name = counter.name.partition("#")[0]
            if name not in told:
                told.add(name)
                for each in (name, _EVERY_RULE):
                    minute.total(each, REFUSED)
                    if subject != EVERYBODY:
                        minute.client(each, REFUSED, subject)
        sampled = minute.refusals if rule else minute.allowed
        sampled.add(lambda: _sample(now_us, (rule, outcome, self._version), asked))

    def _asked(self, planned: Planned) -> _Asked:
        known = self._known.get(id(planned))
        if known is None:
            rules: dict[str, int] = {}
            clients: dict[tuple[str, str], int] = {}
            for counter in planned.unidentified:
                rules.setdefault(counter.name.partition("#")[0], planned.cost)
            for counter, subject, cost in planned.charges:
                name = counter.name.partition("#")[0]
                rules.setdefault(name, cost)
                if subject != EVERYBODY:
                    clients.setdefault((name, subject), cost)
            told = tuple((*key, cost) for key, cost in clients.items())
            known = planned, _Asked(planned.tier or "", planned.cost, tuple(rules.items()), told)
            self._known[id(planned)] = known
        return known[1]

    def _batch(self, minute: _Minute) -> Batch:
        """The minute, with clients by themselves and without its id."""
        subjects: list[SubjectCount] = []
        totals: list[SubjectTotal] = []
        for (rule, kind), total in sorted(minute.totals.items()):
            seen = minute.clients.get((rule, kind))
            found = [] if seen is None else sorted(seen.tallies(), key=lambda tally: (-tally.times, tally.key))
            told, rest = found[:REPLAY_RECORDED_CLIENTS_TOLD], found[REPLAY_RECORDED_CLIENTS_TOLD:]
            subjects += [SubjectCount(rule, one.key, kind, one.times, one.error) for one in told]
            untold = rest[0].times if rest else 0 if seen is None else seen.uncounted
            totals.append(SubjectTotal(rule, kind, total, untold))
        until_us = minute.at_us + _MINUTE_US
        version = self._version
        return Batch(
            v=SCHEMA_VERSION,
            id="-",
            node=NODE,
            at_us=minute.at_us,
            until_us=until_us,
            requests=[
                RequestCount(*key, version, counts[0], counts[1]) for key, counts in sorted(minute.requests.items())
            ],
            rules=[RuleCount(*key, version, counts[0], counts[1]) for key, counts in sorted(minute.rules.items())],
            subjects=subjects,
            totals=totals,
            decisions=[*minute.refusals.told(), *minute.allowed.told()],
            demand=self._demand.take(minute.at_us, until_us, str, last=True),
        )

    def _named(self, plain: Batch, name: str) -> Batch:
        """The batch as it is told."""
        name_of, replace = self._name_of, msgspec.structs.replace
        return replace(
            plain,
            id=name,
            subjects=[replace(row, subject=name_of(row.subject)) for row in plain.subjects],
            decisions=[
                replace(row, subjects={of: name_of(subject) for of, subject in row.subjects.items()})
                for row in plain.decisions
            ],
            demand=[replace(row, subject=name_of(row.subject)) for row in plain.demand],
        )


def _outcomes(planned: Planned, refusing: Noted) -> dict[str, str]:
    """What the rules that did not let a request pass did, in order of evaluation; of several parts of one rule, the worst."""
    outcomes: dict[str, str] = {}
    for counter, _ in refusing:
        name = counter.name.partition("#")[0]
        if counter.shadow:
            outcomes.setdefault(name, SHADOW_DENIED)
        elif counter in planned.unidentified or _never_fits(planned, counter.name):
            outcomes[name] = NEVER_FITS
        else:
            outcomes.setdefault(name, DENIED)
    return outcomes


def _never_fits(planned: Planned, counter_name: str) -> bool:
    return any(counter.name == counter_name and cost > counter.spec.capacity for counter, _, cost in planned.charges)


def _sample(now_us: int, decided: tuple[str, str, int], asked: _Asked) -> DecisionSample:
    rule, outcome, version = decided
    subjects = {"|".join(part.partition(":")[0] for part in one.split("|")): one for _, one, _ in asked.clients}
    return DecisionSample(
        at_us=now_us,
        outcome=outcome,
        sample_rate=1.0,
        rule=rule,
        tier=asked.tier,
        version=version,
        rules=tuple(name for name, _ in asked.rules),
        subjects=subjects,
        cost=asked.cost,
        # The log knows no answer of ours: when it would have passed was not asked.
        retry_after_ms=None if outcome == NEVER_FITS else 0,
    )


def _add(to: dict[tuple[str, str, str], list[int]], key: tuple[str, str, str], tokens: int) -> None:
    counts = to.get(key)
    if counts is None:
        to[key] = [1, tokens]
    else:
        counts[0] += 1
        counts[1] += tokens
