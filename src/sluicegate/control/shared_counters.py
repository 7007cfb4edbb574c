"""The way to counters in a store that all nodes share: the service decides as a node does, and charges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from sqlalchemy import and_, or_, select

from sluicegate.clock import Clock
from sluicegate.control import schema
from sluicegate.control.counters import Asker, NodeAnswer, Operation, Question
from sluicegate.control.database import Database
from sluicegate.control.list_values import covering
from sluicegate.errors import InvalidRequest, StoreError
from sluicegate.limiter.counters import SubjectOfRule, Target, facts_in
from sluicegate.limiter.known import Known
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.live import facts_of
from sluicegate.rules.document import load_document
from sluicegate.rules.effective import effective
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry, Snapshot, SubjectEntry
from sluicegate.rules.identity.addresses import canonical_ip
from sluicegate.rules.identity.config import IdentityConfig
from sluicegate.rules.model import SUBJECT_KINDS, RuleSet
from sluicegate.stores.base import Store

__all__ = ["SharedCounters"]

_OK, _BAD, _AWAY = 200, 400, 503


class SharedCounters:
    """A ``Reach``. ``store`` stays open until ``close``. ``namespace``: that of the nodes.

    The rules are those of a node that no rollout names. Lists and subjects are looked up in the database, for the client at hand only.
    """

    def __init__(
        self,
        store: Store,
        database: Database,
        snapshot: Callable[[], Awaitable[Snapshot]],
        clock: Clock,
        *,
        namespace: str = "default",
    ) -> None:
        self._store = store
        self._database = database
        self._snapshot = snapshot
        self._clock = clock
        self._namespace = namespace
        self._made: tuple[Snapshot, int | None, RuleSet] | None = None

    async def open(self, question: Question) -> Asker:
        """See ``Reach``. Raises Unavailable."""
        try:
            target, rule = _target(question)
            return _Limited(await self._limiter(target), target, rule)
        except InvalidRequest as error:
            return _Refused(_bad(error))

    def close(self) -> None:
        """Release the store."""
        self._store.close()

    async def _limiter(self, target: Target) -> Limiter:
        """One that decides as nodes do now, and knows what is said of this client."""
        ruleset = await self._rules()
        if ruleset is None:
            raise InvalidRequest("", "there are no rules yet, so nothing is counted")
        known = Known(self._clock)
        facts = facts_in(target.subject) if isinstance(target, SubjectOfRule) else facts_of(target)
        await self._look_up(known, facts)
        # Rules are many at times, and compiling them takes long.
        return await asyncio.to_thread(
            Limiter.from_rules, ruleset, self._store, self._clock, namespace=self._namespace, known=known, near=None
        )

    async def _rules(self) -> RuleSet | None:
        snapshot = await self._snapshot()
        if snapshot.rules is None:
            return None
        made, now_us = self._made, self._clock.now_us()
        if made is None or made[0] is not snapshot or (made[1] is not None and now_us >= made[1]):
            made = self._made = await asyncio.to_thread(_effective, snapshot, now_us)
        return made[2]

    async def _look_up(self, known: Known, facts: Facts) -> None:
        """Put in ``known`` what the database has of the client of these facts."""
        names = [f"{name}:{getattr(facts, name)}" for name in SUBJECT_KINDS if getattr(facts, name)]
        pairs = [(name, [getattr(facts, name)]) for name in SUBJECT_KINDS if getattr(facts, name)]
        if facts.ip:
            pairs.append(("ip", _networks(facts.ip)))
        if not pairs:
            return
        entries, subjects = schema.list_entries, schema.subjects
        named = or_(*[and_(entries.c.kind == kind, entries.c.value.in_(values)) for kind, values in pairs])
        async with self._database.read() as connection:
            listed = (await connection.execute(select(entries).where(named, entries.c.deleted == 0))).all()
            found = (
                await connection.execute(select(subjects).where(subjects.c.subject.in_(names), subjects.c.deleted == 0))
            ).all()
        for row in listed:
            known.lists.put(ListEntry(row.list, row.kind, row.value, row.expires_us, row.source))
        for row in found:
            rules = msgspec.json.decode(row.rules, type=tuple[str, ...])
            known.subjects.put(
                SubjectEntry(row.subject, row.tier, row.factor_numerator, row.factor_denominator, row.until_us, rules)
            )


class _Limited:
    """Asks the store of a limiter."""

    def __init__(self, limiter: Limiter, target: Target, rule: str | None) -> None:
        self._limiter = limiter
        self._target = target
        self._rule = rule

    async def ask(self, operation: Operation, question: Question) -> Sequence[NodeAnswer]:
        try:
            return [NodeAnswer("", _OK, await _done(self._limiter, operation, question, self._target, self._rule))]
        except InvalidRequest as error:
            return [_bad(error)]
        except StoreError as error:
            return [NodeAnswer("", _AWAY, error=f"the store gives no answer: {error}")]


class _Refused:
    """A question that cannot be meant."""

    def __init__(self, answer: NodeAnswer) -> None:
        self._answer = answer

    async def ask(self, operation: Operation, question: Question) -> Sequence[NodeAnswer]:  # noqa: ARG002
        return [self._answer]


def _bad(error: InvalidRequest) -> NodeAnswer:
    pointer = "/" + error.field.replace(".", "/") if error.field else ""
    return NodeAnswer("", _BAD, error=str(error) if error.field else error.message, pointer=pointer)


async def _done(
    limiter: Limiter, operation: Operation, question: Question, target: Target, rule: str | None
) -> dict[str, Any]:
    if operation == "explain":
        if isinstance(target, SubjectOfRule):
            raise InvalidRequest("facts", "missing: a request is explained by what is known of it")
        return (await limiter.aexplain(target, question.get("cost", 1))).to_dict()
    if operation == "reset":
        return {"reset": await limiter.areset(target, rule=rule)}
    if operation == "grant":
        try:
            states = await limiter.agrant(target, question.get("tokens"), rule=rule)  # type: ignore[arg-type]  # is checked there
        except InvalidRequest as error:
            raise InvalidRequest("tokens", error.message) from None if error.field == "cost" else error
    else:
        states = await limiter.aread(target, rule=rule)
    return {"counters": [state.to_dict() for state in states]}


def _target(question: Question) -> tuple[Target, str | None]:
    facts, rule, subject = question.get("facts"), question.get("rule"), question.get("subject")
    if facts is not None:
        return facts_of(facts), rule
    if rule is None or subject is None:
        raise InvalidRequest("facts", "missing: send facts, or rule and subject")
    return SubjectOfRule(rule, subject, question.get("tier")), None


def _effective(snapshot: Snapshot, now_us: int) -> tuple[Snapshot, int | None, RuleSet]:
    assert snapshot.rules is not None, "asked for with rules only"
    base = load_document(snapshot.rules.document, "the rules in service", snapshot.rules.version)
    rollout = snapshot.candidate
    trial = None if rollout is None else load_document(rollout.rules.document, "the rollout", rollout.rules.version)
    ruleset, changes_at_us = effective(base, trial, rollout, snapshot.pauses, "", now_us)
    identity = ruleset.identity
    if isinstance(identity, IdentityConfig):
        # Files of keys are at the nodes; nobody is identified here.
        bare = IdentityConfig(ipv4_prefix=identity.ipv4_prefix, ipv6_prefix=identity.ipv6_prefix)
        ruleset = replace(ruleset, identity=bare)
    return snapshot, changes_at_us, ruleset


def _networks(text: str) -> list[str]:
    """The address as it may stand on a list, and every network that it is in; of every spelling that a node takes."""
    try:
        address = canonical_ip(text)
    except ValueError:
        return []
    return [address, *covering(address)]
