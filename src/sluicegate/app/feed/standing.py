"""Where a node stands, and where its service does."""

from __future__ import annotations

from typing import Any

import msgspec

from sluicegate.app.feed.tables import Table
from sluicegate.clock import US_PER_S, Clock
from sluicegate.rules.feed import ListChanges, Revisions, SubjectChanges

__all__ = ["Standing"]


def _newest(known: Revisions, told: Revisions) -> Revisions:
    """Of two of one life of the database the larger numbers; else ``told``."""
    if known.incarnation != told.incarnation:
        return told
    numbers = (
        max(pair) for pair in zip(msgspec.structs.astuple(known)[1:], msgspec.structs.astuple(told)[1:], strict=True)
    )
    return Revisions(known.incarnation, *numbers)


class Standing:
    """Numbers only. ``told``: what the service said last. ``hinted``: what others said that it does not say yet; it is believed for one question.

    ``judged``: of the snapshot that was put in service or refused last. ``unsure``: something may have been missed. ``connected``: whether the last poll was
    answered, None before the first.
    """

    def __init__(self, clock: Clock, lists: Table[ListChanges], subjects: Table[SubjectChanges]) -> None:
        self.told = Revisions()
        self.heard = False
        self.hinted: Revisions | None = None
        self.judged = Revisions()
        self.unsure = False
        self.epoch: tuple[str, int] = ("", 0)
        self.connected: bool | None = None
        self.lost_error: str | None = None
        self.error: str | None = None
        self._clock = clock
        self._lists = lists
        self._subjects = subjects
        self._in_service = Revisions()
        self._behind_us: int | None = None
        self._heard_us: int | None = None

    def hear(self, told: Revisions) -> None:
        """The service has said this."""
        self.told = told
        self.heard = True
        self._look()

    def reached(self) -> bool:
        """The service has answered a poll; whether it had not answered the one before."""
        again, self.connected, self.lost_error = self.connected is False, True, None
        self._heard_us = self._clock.monotonic_us()
        return again

    def missed(self, error: str) -> bool:
        """It has not; whether it had answered the one before, or this was the first."""
        first, self.connected, self.lost_error = self.connected is not False, False, error
        return first

    def hint(self, told: Revisions | None) -> bool:
        """Somebody has said this; whether there is something to ask."""
        if told is None or told.incarnation != self.told.incarnation:
            self.unsure = True
            return True
        if not self._ahead(told):
            return False
        self.hinted = told if self.hinted is None else _newest(self.hinted, told)
        self._look()
        return True

    def done(self, hinted: Revisions | None) -> None:
        """A question was answered that was asked with this hint in mind."""
        if self.hinted is hinted:
            self.hinted = None
        self._look()

    def accepted(self, revisions: Revisions) -> None:
        """Rules with these numbers are in service."""
        self._in_service = revisions
        self._look()

    @property
    def wanted(self) -> Revisions:
        """What is to be had."""
        return (
            self.told
            if self.hinted is None or self.hinted.incarnation != self.told.incarnation
            else _newest(self.told, self.hinted)
        )

    @property
    def applied(self) -> Revisions:
        """What this node decides by."""
        of = self._in_service
        incarnation = of.incarnation
        epoch = self.epoch[1] if self.epoch[0] == incarnation else 0
        lists, subjects = self._lists.revision(incarnation), self._subjects.revision(incarnation)
        return Revisions(incarnation, of.ruleset, of.overlay, lists, subjects, epoch)

    @property
    def is_behind(self) -> bool:
        """Whether there is something to fetch. Rules that were refused are not fetched again."""
        return self._ahead(self.wanted)

    @property
    def is_set_back(self) -> bool:
        """Whether the service has less than this node: its database was set back, or another process of it is a second behind."""
        told, applied = self.told, self.applied
        return self.heard and told.incarnation == applied.incarnation and _newest(told, applied) != told

    def rules_behind(self, wanted: Revisions) -> bool:
        """Whether the rules are to be fetched."""
        judged = self.judged
        return (
            wanted.incarnation != judged.incarnation
            or wanted.ruleset > judged.ruleset
            or wanted.overlay > judged.overlay
        )

    def epoch_behind(self, wanted: Revisions) -> bool:
        """Whether counters were changed by hand since this node was told so last."""
        incarnation, epoch = self.epoch
        return wanted.incarnation != incarnation or wanted.epoch > epoch

    def is_older(self, revisions: Revisions) -> bool:
        """Whether rules with these numbers are older than those that were judged last."""
        judged = self.judged
        return revisions.incarnation == judged.incarnation and (
            revisions.ruleset < judged.ruleset or revisions.overlay < judged.overlay
        )

    @property
    def lag_s(self) -> float:
        """For how long this node has known that it does not decide by what the service has; 0: it does, as far as it knows."""
        self._look()
        return 0.0 if self._behind_us is None else (self._clock.monotonic_us() - self._behind_us) / US_PER_S

    @property
    def age_s(self) -> float | None:
        """Seconds since the service was last heard; None: never."""
        return None if self._heard_us is None else (self._clock.monotonic_us() - self._heard_us) / US_PER_S

    def detail(self) -> dict[str, Any]:
        """What ``/readyz`` says of it."""
        age_s = self.age_s
        return {
            "connected": bool(self.connected),
            "error": self.lost_error or self.error,
            "heard_s": None if age_s is None else round(age_s, 3),
            "lag_s": round(self.lag_s, 3),
            "applied": msgspec.structs.asdict(self.applied),
            "told": msgspec.structs.asdict(self.told),
            "set_back": self.is_set_back,
        }

    def _ahead(self, wanted: Revisions) -> bool:
        return (
            self.rules_behind(wanted)
            or self._lists.is_behind(wanted.incarnation, wanted.lists)
            or self._subjects.is_behind(wanted.incarnation, wanted.subjects)
            or self.epoch_behind(wanted)
        )

    def _look(self) -> None:
        wanted = self.wanted
        lacks = self.heard and (
            self._ahead(wanted)
            or wanted.incarnation != self._in_service.incarnation
            or wanted.ruleset > self._in_service.ruleset
            or wanted.overlay > self._in_service.overlay
        )
        if not lacks:
            self._behind_us = None
        elif self._behind_us is None:
            self._behind_us = self._clock.monotonic_us()
