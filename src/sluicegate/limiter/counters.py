"""Counters as those who operate them name and see them: the counters of a request, or of a subject of a rule, and how they stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from sluicegate.algorithms.spec import State
from sluicegate.bounds import CAPACITY_MAX, KEY_CHARS_MAX
from sluicegate.clock import US_PER_MS
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.compiled import CompiledRule
from sluicegate.limiter.core import FactsOrKey
from sluicegate.limiter.known import Known
from sluicegate.limiter.live import Live, facts_of
from sluicegate.rules.facts import Facts
from sluicegate.rules.match import EVERY_PATH, see
from sluicegate.stores.base import Charge, Counter

__all__ = ["CounterState", "SubjectOfRule", "Target", "charges_of", "described", "facts_in"]


class SubjectOfRule(NamedTuple):
    """The counters that a rule has for a subject, which is written as in refusals and reports: ``user:8123``, ``ip:203.0.113.9|path:/login``, ``*``.

    ``tier``: whose numbers they have; None: the tier that is known for the user, key or tenant in the subject.
    """

    rule: str
    subject: str
    tier: str | None = None


Target: TypeAlias = FactsOrKey | SubjectOfRule
"""Which counters are meant: all that a request would be charged to, or those of a subject of a rule."""


class CounterState(NamedTuple):
    """How one counter stands. Looking changes nothing.

    ``counter`` is the rule's name, and its place (``#2``) in a quota of several parts. ``used`` of ``limit`` tokens; a part of a token counts as one. ``wait_us``:
    until one more token passes; 0: it does now, None: it never does. ``full_after_us``: until nothing is used, if nobody asks. ``given``: the tokens a
    grant has just given back.
    """

    rule: str
    counter: str
    subject: str
    algorithm: str
    limit: int
    window_us: int
    used: int
    remaining: int
    wait_us: int | None
    full_after_us: int
    shadow: bool
    given: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Times are milliseconds, rounded up."""
        return {
            "rule": self.rule,
            "counter": self.counter,
            "subject": self.subject,
            "algorithm": self.algorithm,
            "limit": self.limit,
            "window_ms": _ms(self.window_us),
            "used": self.used,
            "remaining": self.remaining,
            "wait_ms": None if self.wait_us is None else _ms(self.wait_us),
            "full_ms": _ms(self.full_after_us),
            "shadow": self.shadow,
            "given": self.given,
        }


_IDENTITIES: Final = frozenset(("user", "api_key", "tenant", "ip"))


def charges_of(live: Live, known: Known, target: Target, rule: str | None = None) -> list[Charge]:
    """The counters that are meant, with the limits that the client has now; cost 0. ``rule``: of this rule only.

    Lists do not matter: the counters of a client stand as they are while it is blocked. Raises InvalidRequest, also for a rule that is not
    in force.
    """
    if live.keyed is not None:
        if isinstance(target, SubjectOfRule):
            raise InvalidRequest("rule", "this limiter was made from a quota: name the key")
        return [(counter, subject, 0) for counter, subject, _ in live.keyed.plan(target, 1).charges]
    if rule is not None:
        _rules_named(live, rule)
    if isinstance(target, SubjectOfRule):
        charges, facts = _of_subject(live, target)
    else:
        facts = facts_of(target)
        charges = live.engine.plan(facts, peek=True, by_rules=True).charges
    overrides = known.subjects.overrides_of(facts) if known.subjects.overriding else []
    found: dict[tuple[str, str], Charge] = {}
    for counter, subject, _ in charges:
        name = live.engine.rule_of(counter.name).name_in_file
        if rule is None or rule in (name, counter.name):
            # The arms of a rollout share counters, and one request is charged to one arm only.
            found.setdefault((counter.prefix, subject), known.subjects.scale((counter, subject, 0), name, overrides))
    return list(found.values())


def described(live: Live, charges: Sequence[Charge], states: Iterable[tuple[int, State | None]]) -> list[CounterState]:
    """The counters in words; ``states`` has for each the time of the store and the state then."""
    found = []
    for (counter, subject, _), (now_us, state) in zip(charges, states, strict=True):
        found.append(_described(live, counter, subject, now_us, state))
    return found


def _described(live: Live, counter: Counter, subject: str, now_us: int, state: State | None) -> CounterState:
    spec = counter.spec
    rule = live.ruleset.rules[0] if live.keyed is not None else live.engine.rule_of(counter.name)
    passes = spec.admit(state, now_us, 1) is not None
    return CounterState(
        rule=rule.name_in_file,
        counter=counter.name,
        subject=subject,
        algorithm=spec.algorithm,
        limit=spec.capacity,
        window_us=spec.window_us,
        used=0 if state is None else spec.grant(state, now_us, CAPACITY_MAX)[1],
        remaining=spec.verdict(state, now_us, 0, True).remaining,
        wait_us=0 if passes else spec.verdict(state, now_us, 1, False).retry_after_us,
        full_after_us=0 if state is None else max(spec.expires_us(state) - now_us, 0),
        shadow=counter.shadow,
    )


def _ms(us: int) -> int:
    return -(-us // US_PER_MS)


def _of_subject(live: Live, target: SubjectOfRule) -> tuple[list[Charge], Facts]:
    """The counters of a subject of a rule, and what the subject says of the client."""
    rules = _rules_named(live, target.rule)
    subject = target.subject
    if not subject or len(subject) > KEY_CHARS_MAX:
        raise InvalidRequest("subject", f"want 1 to {KEY_CHARS_MAX} characters, got {len(subject)}")
    facts = facts_in(subject, target.tier)
    tier = live.engine.plan(facts, peek=True, by_rules=True).tier
    if target.tier is not None and tier != target.tier:
        raise InvalidRequest("tier", f"there is no tier {target.tier!r:.100}")
    seen = see(None, None, None, tier)
    charges = [
        (counter, subject, 0)
        for compiled in rules
        if compiled.arm is None or compiled.arm.guard(seen, EVERY_PATH)(facts)
        for counter in compiled.counters[tier]
    ]
    return charges, facts


def _rules_named(live: Live, rule: str) -> list[CompiledRule]:
    named = [each for each in live.engine.compiled if rule in (each.rule.name, each.rule.name_in_file)]
    if not named:
        raise InvalidRequest("rule", f"there is no rule {rule!r:.100} in force")
    return named


def facts_in(subject: str, tier: str | None = None) -> Facts:
    """What a subject says of its client."""
    known: dict[str, str] = {}
    for part in subject.split("|"):
        dimension, _, value = part.partition(":")
        if dimension in _IDENTITIES and value:
            known[dimension] = unquote_to_bytes(value).decode("utf-8", "replace")
    ip, user, api_key, tenant = (known.get(dimension) for dimension in ("ip", "user", "api_key", "tenant"))
    return Facts(ip=ip, user=user, api_key=api_key, tenant=tenant, tier=tier)
