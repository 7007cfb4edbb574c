"""What a limiter knows of single clients beside its rules."""

from __future__ import annotations

from sluicegate.clock import Clock
from sluicegate.limiter.lists import Lists
from sluicegate.limiter.sampler import Sampler
from sluicegate.limiter.subject_table import SubjectTable

__all__ = ["Known"]


class Known:
    """The lists and the subjects of a limiter, and the sample of its requests; they outlive its rules.

    ``active``: whether they can change a decision beyond the tier, or a sample is drawn; a request pays for one look at it where not.
    """

    __slots__ = ("active", "lists", "sampler", "subjects")

    def __init__(self, clock: Clock) -> None:
        self.active = False
        self.lists = Lists(clock, self._look)
        self.subjects = SubjectTable(clock, self._look)
        self.sampler = Sampler(clock, self._look)

    def _look(self) -> None:
        self.active = self.lists.active or self.subjects.overriding or self.sampler.on
