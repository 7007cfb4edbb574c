"""What a rollout is watched by: counts that nodes report, and the bounds above which it is undone.

The counts are kept in slots of time, so that the guard judges what happened lately and not the good hours before. All of it is data
that is stored with the rollout: a service that starts again goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluicegate.bounds import GUARD_SLOTS, ROLLOUT_CLIENTS_KEPT
from sluicegate.clock import US_PER_S
from sluicegate.rules.effective import CANARY, SHADOW
from sluicegate.rules.feed import NodeReport

__all__ = ["Counts", "Guard", "Tally"]


class Guard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a rollout is undone by itself: where a share of the last ``window_s`` seconds is above its bound (None: it is not looked at).

    ``refusal_ratio_max``: refusals of one new version, of the requests it applied to. ``store_error_ratio_max``: requests whose store
    call failed, of all requests of all nodes. A share of fewer than ``min_requests`` says nothing.
    """

    refusal_ratio_max: float | None = None
    store_error_ratio_max: float | None = None
    min_requests: int = 100
    window_s: int = 60


class Counts(msgspec.Struct):
    """What one version of a rule did: requests it applied to, those it refused, and would have refused as a shadow."""

    matched: int = 0
    refused: int = 0
    shadow_refused: int = 0

    def add(self, matched: int, refused: int, shadow_refused: int) -> None:
        self.matched += matched
        self.refused += refused
        self.shadow_refused += shadow_refused


class _Slot(msgspec.Struct):
    start_us: int
    requests: int = 0
    store_errors: int = 0
    rules: dict[str, Counts] = {}


@dataclass(slots=True)
class Tally:
    """Counts of one rollout. ``rules``: the names in files of the rules on trial; all others are left out.

    ``total``: by name of the version, since the rollout began; ``clients``: refusals by (version, subject), those told most often.
    """

    rules: frozenset[str]
    requests: int = 0
    store_errors: int = 0
    total: dict[str, Counts] = field(default_factory=dict)
    clients: dict[tuple[str, str], int] = field(default_factory=dict)
    slots: list[_Slot] = field(default_factory=list)

    def add(self, report: NodeReport, now_us: int, window_s: int) -> None:
        """Take in what a node reports at ``now_us``, for a guard that looks back ``window_s``."""
        slot = self._slot(now_us, window_s)
        self.requests += report.requests
        self.store_errors += report.store_errors
        slot.requests += report.requests
        slot.store_errors += report.store_errors
        for name, row in report.rules.items():
            if _base(name) in self.rules:
                for counts in (self.total, slot.rules):
                    counts.setdefault(name, Counts()).add(row.matched, row.refused, row.shadow_refused)
        for rule, subject, times in report.would_refuse:
            if _base(rule) in self.rules:
                self.clients[rule, subject] = self.clients.get((rule, subject), 0) + times
        if len(self.clients) > ROLLOUT_CLIENTS_KEPT:
            self.clients = dict(self.most_refused(ROLLOUT_CLIENTS_KEPT))

    def most_refused(self, at_most: int) -> list[tuple[tuple[str, str], int]]:
        """((version, subject), times), the most refused first."""
        return sorted(self.clients.items(), key=lambda item: (-item[1], item[0]))[:at_most]

    def judge(self, guard: Guard, now_us: int) -> str | None:
        """Why the rollout is to be undone; None where nothing is above its bound."""
        recent = [slot for slot in self.slots if slot.start_us > now_us - guard.window_s * US_PER_S]
        return next(_faults(guard, recent), None)

    def begin_step(self) -> None:
        """Another share of the clients is inside from now on: what was counted before says nothing of it."""
        self.slots.clear()

    def to_data(self) -> dict[str, Any]:
        """As plain data, for ``of_data``."""
        return {
            "rules": sorted(self.rules),
            "requests": self.requests,
            "store_errors": self.store_errors,
            "total": msgspec.to_builtins(self.total),
            "clients": [[rule, subject, times] for (rule, subject), times in self.most_refused(ROLLOUT_CLIENTS_KEPT)],
            "slots": msgspec.to_builtins(self.slots),
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Tally:
        """What ``to_data`` made."""
        tally = cls(frozenset(data["rules"]), data["requests"], data["store_errors"])
        tally.total = msgspec.convert(data["total"], dict[str, Counts])
        tally.clients = {(rule, subject): times for rule, subject, times in data["clients"]}
        tally.slots = msgspec.convert(data["slots"], list[_Slot])
        return tally

    def _slot(self, now_us: int, window_s: int) -> _Slot:
        """The slot of now; those that no look back reaches are dropped."""
        length_us = max(1, window_s * US_PER_S // GUARD_SLOTS)
        start_us = now_us - now_us % length_us
        self.slots = [slot for slot in self.slots if slot.start_us > now_us - window_s * US_PER_S - length_us]
        for slot in self.slots:
            if slot.start_us == start_us:
                return slot
        made = _Slot(start_us)
        self.slots.append(made)
        return made


def _faults(guard: Guard, slots: list[_Slot]) -> Iterator[str]:
    requests, errors = sum(slot.requests for slot in slots), sum(slot.store_errors for slot in slots)
    bound = guard.store_error_ratio_max
    if bound is not None and requests >= guard.min_requests and errors > bound * requests:
        yield f"the store failed {errors} of {requests} requests in {guard.window_s} s, above {bound:.4g}"
    bound = guard.refusal_ratio_max
    if bound is None:
        return
    recent: dict[str, Counts] = {}
    for slot in slots:
        for name, counts in slot.rules.items():
            recent.setdefault(name, Counts()).add(counts.matched, counts.refused, counts.shadow_refused)
    for name, counts in sorted(recent.items()):
        refused = counts.refused + counts.shadow_refused
        if (
            name.endswith((CANARY, SHADOW))
            and counts.matched >= guard.min_requests
            and refused > bound * counts.matched
        ):
            word = "would have refused" if name.endswith(SHADOW) else "refused"
            yield f"{name} {word} {refused} of {counts.matched} requests in {guard.window_s} s, above {bound:.4g}"


def _base(version: str) -> str:
    """The name in the file of a version of a rule."""
    return version.removesuffix(CANARY).removesuffix(SHADOW)
