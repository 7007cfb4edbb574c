"""The rules a node really decides by: those in service, changed by a rollout and by pauses.

A rollout is nothing that the deciding of requests would have to know. It is another rule set: both versions of a rule stand in it,
and each says which clients it is for. What is made here depends on nothing but what it is given, so every node makes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from msgspec.structs import replace as replace_fields

from sluicegate.rules.feed import Candidate, Pause
from sluicegate.rules.model import Arm, Mode, Rule, RuleSet, Trial
from sluicegate.rules.trials import BASIS_POINTS, Difference, differences

__all__ = ["CANARY", "SHADOW", "Effective", "effective"]

CANARY = "@canary"
"""Ends the name of a rule's new version in a canary. No file can name a rule so."""

SHADOW = "@shadow"
"""Ends the name of a rule that is evaluated beside the one in service."""


class Effective(NamedTuple):
    """``changes_at_us``: wall time at which the rules become others without any message, because a pause ends or a step begins; None: never."""

    ruleset: RuleSet
    changes_at_us: int | None


def effective(
    base: RuleSet,
    candidate: RuleSet | None,
    rollout: Candidate | None,
    pauses: Sequence[Pause],
    node: str,
    now_us: int,
) -> Effective:
    """What the node of this name decides by from ``now_us`` until ``changes_at_us``.

    ``candidate``: the rules of ``rollout``; both or none are given. Tiers, subjects, identity and version are those of ``base``, and
    so are the rules where there is neither a rollout nor a pause. ``digest`` stands for all they were made of: nodes with the same one
    decide alike.
    """
    rules, made_of = base.rules, [base.digest]
    times_us: list[int] = []
    if candidate is not None and rollout is not None:
        if rollout.from_us is not None and now_us < rollout.from_us:
            times_us.append(rollout.from_us)
            rollout = replace_fields(rollout, basis_points=rollout.before_basis_points)
        rules = tuple(_on_trial(base, candidate, rollout, node))
        share = f"{rollout.basis_points}{'+' if node in rollout.nodes else ''}"
        made_of += [candidate.digest, rollout.kind, str(rollout.rollout), rollout.salt, share]
    lasting = [pause for pause in pauses if pause.until_us is None or now_us < pause.until_us]
    if lasting:
        paused = {pause.rule for pause in lasting}
        rules = tuple(
            replace(rule, mode=Mode.OFF) if None in paused or rule.name_in_file in paused else rule for rule in rules
        )
        made_of += ["paused", *sorted(name or "*" for name in paused)]
    times_us += [pause.until_us for pause in lasting if pause.until_us is not None]
    changes_at_us = min(times_us, default=None)
    if rules is base.rules:
        return Effective(base, changes_at_us)
    digest = sha256("\0".join(made_of).encode()).hexdigest()[: len(base.digest)]
    return Effective(replace(base, rules=rules, digest=digest), changes_at_us)


def _on_trial(base: RuleSet, candidate: RuleSet, rollout: Candidate, node: str) -> Iterator[Rule]:
    """The rules of both sets, a new one where the candidate has it: after the rule that stands before it there."""
    found = {each.name: each for each in differences(base, candidate)}
    after: dict[str | None, list[Difference]] = {}
    before: str | None = None
    known = {rule.name for rule in base.rules}
    for rule in candidate.rules:
        if rule.name in known:
            before = rule.name
        else:
            after.setdefault(before, []).append(found[rule.name])
    for each in after.get(None, ()):
        yield from _versions(each, rollout, node)
    for rule in base.rules:
        if rule.name in found:
            yield from _versions(found[rule.name], rollout, node)
        else:
            yield rule
        for each in after.get(rule.name, ()):
            yield from _versions(each, rollout, node)


def _versions(difference: Difference, rollout: Candidate, node: str) -> Iterator[Rule]:
    """What stands in the place of one rule: its new version, its old one, or both."""
    old, new = difference.old, difference.new
    plain = Trial(rollout.rollout, difference.name)
    if rollout.kind == "shadow":
        if old is not None:
            yield replace(old, trial=plain)
        if new is not None and new.mode is not Mode.OFF:
            trial = replace(plain, generation=rollout.rollout)
            yield replace(new, name=new.name + SHADOW, mode=Mode.SHADOW, penalty=None, trial=trial)
        return
    inside = outside = plain
    everywhere = rollout.basis_points >= BASIS_POINTS
    if not everywhere and node in rollout.nodes:
        # Other nodes judge the same clients by the old numbers, and no counter is judged by two.
        everywhere, inside = True, replace(plain, generation=rollout.rollout)
    elif difference.apart:
        inside = replace(plain, generation=rollout.rollout)
    pers = difference.pers
    some = not everywhere and rollout.basis_points > 0 and bool(pers)
    if some:
        arm = Arm(rollout.salt, rollout.basis_points, inside=True, pers=pers)
        inside, outside = replace(inside, arm=arm), replace(outside, arm=replace(arm, inside=False))
    if new is not None and (everywhere or some):
        yield replace(new, name=new.name + CANARY, trial=inside)
    if old is not None and not everywhere:
        yield replace(old, trial=outside)
