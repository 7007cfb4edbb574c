"""What a candidate for the rules differs in from the rules in service, and which clients meet the difference first.

A client's bucket follows from the salt of the rollout and the client's name alone, so it is the same on every node and in every
rule that counts the same kind of client. A rollout that takes one rule away and brings another in its place therefore never leaves
a client between the two, without either, as long as both count the same kind of client.

The client is what the subject of the rule's counter says of it, less the parts that name no client (``endpoint``, ``host`` and the
like). So a counter belongs to one client, is judged by one version of its rule, and crosses over once. Were it judged by both in
turns, each turn to the larger number would give it more.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from sluicegate.rules.digest import meaning_of
from sluicegate.rules.feed import CandidateKind
from sluicegate.rules.model import Mode, OnMissing, Per, Rule, RuleSet

__all__ = ["BASIS_POINTS", "Difference", "bucket_of", "client_of", "coverage_of", "differences", "trial_problems"]

BASIS_POINTS: Final = 10_000
"""The number of buckets; a share of clients is told in these."""

_NO_CLIENT: Final = frozenset(("domain", "endpoint", "host", "method", "path", "tier"))


class Difference(NamedTuple):
    """A rule that is not the same in both sets. ``old`` None: the candidate adds it; ``new`` None: it is removed."""

    name: str
    old: Rule | None
    new: Rule | None

    @property
    def pers(self) -> tuple[Per, ...]:
        """By what a request's client is known: by the new rule, else by the old one. () where the rule counts no client."""
        leading = self.new or self.old
        assert leading is not None
        if _NO_CLIENT.issuperset(leading.per.dimensions):
            return ()
        if self.old is None or self.old.per == leading.per:
            return (leading.per,)
        return (leading.per, self.old.per)

    @property
    def apart(self) -> bool:
        """Whether both versions can make the same subject out of different requests, so that they must not share counters."""
        if self.old is None or self.new is None or _subject_form(self.old.per) == _subject_form(self.new.per):
            return False
        return not _parts_of(self.old.per).isdisjoint(_parts_of(self.new.per))


def differences(base: RuleSet, candidate: RuleSet) -> tuple[Difference, ...]:
    """The rules that differ in meaning, by order of the candidate, then those it removes. Layout and spelling are no difference."""
    before = {rule.name: rule for rule in base.rules}
    after = {rule.name: rule for rule in candidate.rules}
    changed = [
        Difference(name, before.get(name), rule)
        for name, rule in after.items()
        if name not in before or not _means_the_same(before[name], rule)
    ]
    return (*changed, *(Difference(name, rule, None) for name, rule in before.items() if name not in after))


def bucket_of(salt: str, client: str) -> int:
    """The bucket of a client, 0 to 9,999: the first 8 bytes of SHA-256 over salt, a zero byte and client, modulo 10,000."""
    digest = sha256(f"{salt}\0{client}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % BASIS_POINTS


def client_of(subject: str) -> str:
    """What a subject says of the client; "" where it says nothing."""
    return "|".join(part for part in subject.split("|") if part.partition(":")[0] not in _NO_CLIENT and part != "*")


def trial_problems(base: RuleSet, candidate: RuleSet, kind: CandidateKind) -> list[str]:
    """Why the candidate cannot be tried out beside the rules in service; empty where it can."""
    problems = [
        f"{name} differ: a rollout tries rules only, so change {name} for everybody first"
        for name, before, after in (
            ("tiers", base.tiers, candidate.tiers),
            ("identity settings", base.identity, candidate.identity),
            ("subjects", dict(base.subjects), dict(candidate.subjects)),
        )
        if before != after
    ]
    found = differences(base, candidate)
    if not found:
        problems.append("no rule differs from the rules in service")
    elif kind == "shadow" and all(each.new is None or each.new.mode is Mode.OFF for each in found):
        problems.append("the candidate only removes rules or turns them off: a shadow has nothing to evaluate")
    return problems


def coverage_of(difference: Difference, kind: CandidateKind) -> str:
    """What an operator must know of how this rule is tried out; "" where there is nothing."""
    return " ".join(_notes(difference, kind))


def _notes(difference: Difference, kind: CandidateKind) -> Iterator[str]:
    if kind == "shadow":
        if difference.new is None or difference.new.mode is Mode.OFF:
            yield "Not evaluated: a shadow can only show refusals that a rule adds."
        return
    if not difference.pers:
        yield "Counts no client, so it changes for everybody at once: at 100 %, and on named nodes."
    if difference.apart:
        yield "Has counters of its own while it is tried out: a client may use up the old and the new limit once."


def _means_the_same(old: Rule, new: Rule) -> bool:
    # Most rules of two versions are equal to the letter, and that is found out in a tenth of the time.
    return old == new or meaning_of(old) == meaning_of(new)


def _subject_form(per: Per) -> tuple[object, ...]:
    return (per.dimensions, per.first_of, per.on_missing is OnMissing.IP)


def _parts_of(per: Per) -> set[tuple[str, ...]]:
    """The lists of dimensions that the subjects of a rule can have."""
    parts: set[tuple[str, ...]] = {(name,) for name in per.dimensions} if per.first_of else {per.dimensions}
    if per.on_missing is OnMissing.IP:
        parts.add(("ip",))
    return parts
