"""From what was looked at to what is told: samples, and the clients that came most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sluicegate.algorithms.space_saving import SpaceSaving, Tally
from sluicegate.bounds import ASKED_MAX, ENDPOINT_SEGMENT_CHARS_MAX, ENDPOINT_TOLD_CHARS_MAX, SUBJECTS_TOLD_MAX
from sluicegate.clock import US_PER_MS
from sluicegate.events import (
    ASKED,
    REFUSED,
    DecisionSample,
    RequestCount,
    RuleCount,
    SubjectCount,
    SubjectTotal,
)
from sluicegate.limiter.cells import rule_of
from sluicegate.limiter.offenders import Client, Refused
from sluicegate.limiter.recording.looks import Look
from sluicegate.limiter.recording.outcomes import request_of
from sluicegate.rules.facts import Facts
from sluicegate.stores.keys import EVERYBODY

__all__ = ["Hitters", "samples_of", "subjects_of"]

_EVERY_RULE = ""


class Hitters:
    """Who came most since the last take. Not safe under threads: its owner takes turns.

    ``refused``: what was read of refusals. ``looks``, ``weight``: decisions looked at, and the most that stand behind one.
    """

    def __init__(self) -> None:
        self.refused = Refused([], {}, 0)
        self.clients: SpaceSaving[Client] = SpaceSaving(ASKED_MAX)
        self.weight = 1

    def keep(self, found: Refused) -> None:
        """Refusals that were read."""
        if not found.totals:
            return
        if not self.refused.totals:
            self.refused = found
            return
        known = self.refused
        totals = dict(known.totals)
        for rule, times in found.totals.items():
            totals[rule] = totals.get(rule, 0) + times
        # Read twice before a take, which happens when a recorder is detached: uncertain by both.
        self.refused = Refused([*known.tallies, *found.tallies], totals, known.uncounted + found.uncounted)

    def asked(self, looks: Iterable[Look]) -> None:
        """Decisions that were looked at."""
        add = self.clients.add
        for look in looks:
            weight = look.weight
            self.weight = max(self.weight, weight)
            seen: set[str] = set()
            last = ""
            for counter, subject, _ in look.decision.plan.charges:
                rule = rule_of(counter.name)
                if subject == EVERYBODY or rule == last:
                    continue
                last = rule
                add((rule, subject), weight)
                if subject not in seen:
                    seen.add(subject)
                    add((_EVERY_RULE, subject), weight)

    def begin(self) -> None:
        """All was told."""
        self.refused = Refused([], {}, 0)
        self.clients = SpaceSaving(ASKED_MAX)
        self.weight = 1


def samples_of(looks: Sequence[Look], most: int, name_of: Callable[[str], str]) -> tuple[list[DecisionSample], int]:
    """At most ``most`` samples, evenly from all looks; and how many looks are not among them."""
    if len(looks) <= most:
        return [_sample(look, 1.0, name_of) for look in looks], 0
    share = most / len(looks)
    chosen = [looks[index * len(looks) // most] for index in range(most)]
    return [_sample(look, share, name_of) for look in chosen], len(looks) - most


def subjects_of(
    hitters: Hitters, requests: Sequence[RequestCount], rules: Sequence[RuleCount], name_of: Callable[[str], str]
) -> tuple[list[SubjectCount], list[SubjectTotal], int]:
    """The heavy hitters, the totals they belong to, and how many of them found no room; ``hitters`` begins anew."""
    refused = _with_overall(hitters.refused)
    totals = dict(hitters.refused.totals)
    if totals:
        totals[_EVERY_RULE] = sum(totals.values())
    told, sums, cut = _told(REFUSED, refused, totals, hitters.refused.uncounted, 1.0, name_of)
    asked: dict[str, int] = {}
    for row in rules:
        asked[row.rule] = asked.get(row.rule, 0) + row.decisions
    asked[_EVERY_RULE] = sum(row.decisions for row in requests)
    tallies = hitters.clients.tallies()
    among = {tally.key[0] for tally in tallies}
    asked = {rule: times for rule, times in asked.items() if rule in among}
    more = _told(ASKED, tallies, asked, hitters.clients.uncounted, 1 / hitters.weight, name_of)
    hitters.begin()
    return [*told, *more[0]], [*sums, *more[1]], cut + more[2]


def _with_overall(refused: Refused) -> list[Tally[Client]]:
    """The tallies, and for each subject that over all rules: of a rule that has none for it, it may have been refused ``uncounted`` times."""
    sums: dict[str, list[int]] = {}
    for (_, subject), times, error in refused.tallies:
        row = sums.setdefault(subject, [0, 0, 0])
        row[0] += times
        row[1] += error
        row[2] += 1
    rules = len(refused.totals)
    overall = []
    for subject, (times, error, found) in sums.items():
        more = max(0, rules - found) * refused.uncounted
        overall.append(Tally((_EVERY_RULE, subject), times + more, error + more))
    return [*refused.tallies, *overall]


def _told(
    kind: str,
    tallies: Sequence[Tally[Client]],
    totals: dict[str, int],
    uncounted: int,
    rate: float,
    name_of: Callable[[str], str],
) -> tuple[list[SubjectCount], list[SubjectTotal], int]:
    tallies = [tally for tally in tallies if tally.key[1] != EVERYBODY]
    found = sorted(tallies, key=lambda tally: (-tally.times, tally.key))
    told, rest = found[:SUBJECTS_TOLD_MAX], found[SUBJECTS_TOLD_MAX:]
    several = max(1, len(totals) - 1)
    untold = {rule: uncounted * (several if rule == _EVERY_RULE else 1) for rule in totals}
    for (rule, _), times, _ in rest:
        untold[rule] = max(untold.get(rule, 0), times)
    rows = [
        SubjectCount(rule, name_of(subject), kind, times, min(error, times), rate)
        for (rule, subject), times, error in told
    ]
    return rows, [SubjectTotal(rule, kind, total, untold[rule], rate) for rule, total in totals.items()], len(rest)


def _sample(look: Look, share: float, name_of: Callable[[str], str]) -> DecisionSample:
    decision, plan = look.decision, look.decision.plan
    request, summary = request_of(decision), decision.summary
    decisive = summary.decisive
    method, endpoint = _request_line(plan.facts)
    names = [counter.name for counter in plan.unidentified] + [charge[0].name for charge in plan.charges]
    wait_us = summary.retry_after_us
    return DecisionSample(
        at_us=max(0, look.at_us),
        outcome=request.outcome,
        sample_rate=share / look.weight,
        rule=request.rule,
        tier=request.tier,
        version=request.version,
        rules=tuple(dict.fromkeys(map(rule_of, names))),
        subjects={_dimensions(subject): name_of(subject) for _, subject, _ in plan.charges},
        method=method,
        endpoint=endpoint,
        cost=plan.cost,
        limit=None if decisive is None else decisive.limit,
        remaining=None if decisive is None else decisive.remaining,
        retry_after_ms=None if wait_us is None else -(-wait_us // US_PER_MS),
        degraded=decision.degraded,
    )


def _dimensions(subject: str) -> str:
    """The names of a subject's dimensions: ``api_key|endpoint``; "" for everybody."""
    return "" if subject == EVERYBODY else "|".join(part.partition(":")[0] for part in subject.split("|"))


def _request_line(facts: Facts | None) -> tuple[str, str]:
    """Method and endpoint as they are told: text that can be written down, of bounded length."""
    if facts is None:
        return "", ""
    endpoint = facts.route or "/".join(map(_segment, (facts.path or "").partition("?")[0].split("/")))
    return _written(facts.method or ""), _written(endpoint)


def _segment(text: str) -> str:
    """A part of a path, unless it looks like the name of a thing or a secret."""
    return "*" if len(text) > ENDPOINT_SEGMENT_CHARS_MAX or any(map(str.isdigit, text)) or "@" in text else text


def _written(text: str) -> str:
    return text[:ENDPOINT_TOLD_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")
