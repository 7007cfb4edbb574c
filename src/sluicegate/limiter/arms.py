"""Which share of the clients a request belongs to, for rules that apply to one share only."""

from __future__ import annotations

from sluicegate.bounds import SUBJECT_MEMO_MAX
from sluicegate.limiter.subjects import STATIC_DIMENSIONS, SubjectOf, Subjects
from sluicegate.rules.conditions import Guard, Seen
from sluicegate.rules.facts import Facts
from sluicegate.rules.model import Arm
from sluicegate.rules.trials import BASIS_POINTS, bucket_of, client_of

__all__ = ["ArmGuards"]


class _Insiders(dict[str, bool]):
    """Whether each subject seen is below the arm's basis points. A full memo is emptied: a subject costs 2 microseconds to learn."""

    __slots__ = ("_basis_points", "_salt")

    def __init__(self, arm: Arm) -> None:
        self._salt = arm.salt
        self._basis_points = arm.basis_points

    def __missing__(self, subject: str) -> bool:
        client = client_of(subject)
        inside = client != "" and bucket_of(self._salt, client) < self._basis_points
        if len(self) >= SUBJECT_MEMO_MAX:
            self.clear()
        self[subject] = inside
        return inside


class ArmGuards:
    """Makes the guards of one rule's arm. ``dynamic``: a guard does not depend on what the request line is seen as."""

    __slots__ = ("_arm", "_insiders", "_subjects", "dynamic")

    def __init__(self, arm: Arm, subjects: Subjects) -> None:
        self._arm = arm
        self._subjects = subjects
        self._insiders = _Insiders(arm)
        self.dynamic = all(STATIC_DIMENSIONS.isdisjoint(per.dimensions) for per in arm.pers)

    def guard(self, seen: Seen, pattern: str) -> Guard:
        """Whether the rule is for the client of these facts. Of both arms of one rule exactly one says so."""
        client_subject = self._subject_of(seen, pattern)
        insiders, wanted = self._insiders, self._arm.inside

        def guard(facts: Facts) -> bool:
            subject = client_subject(facts)
            return (subject is not None and insiders[subject]) is wanted

        return guard

    def told(self, seen: Seen, pattern: str, facts: Facts) -> str:
        """Where the client stands, in words."""
        arm = self._arm
        client = client_of(self._subject_of(seen, pattern)(facts) or "")
        if not client:
            return "no client is known, and such requests stay with the rule in service"
        bucket = bucket_of(arm.salt, client)
        where = "inside" if bucket < arm.basis_points else "outside"
        return f"bucket {bucket} of {BASIS_POINTS}, {where} the first {arm.basis_points}"

    def _subject_of(self, seen: Seen, pattern: str) -> SubjectOf:
        known_by = [self._subjects.subject_of(per, seen, pattern) for per in self._arm.pers]
        if len(known_by) == 1:
            return known_by[0]
        first, second = known_by
        return lambda facts: first(facts) or second(facts)
