"""What is known of single subjects in a process's memory: their tiers, and the overrides of their limits.

A subject is ``api_key:k1``, ``user:8123`` or ``tenant:acme``. Where a request has several that are known, they are asked in this order.

An override multiplies the limits of the rules that count the subject, capacity and rate, until it ends. The counter stays: no number is in
its key, and what was used stays used, so a raise helps at once, and at the end the usual numbers apply to what was used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from sluicegate.algorithms.scaled import scaled_spec
from sluicegate.algorithms.spec import OnChange
from sluicegate.bounds import (
    COUNTER_MEMO_MAX,
    LIST_DUE_SPARE,
    LIST_VALUE_CHARS_MAX,
    SUBJECT_FACTOR_PART_MAX,
    SUBJECTS_IN_NODE_MAX,
)
from sluicegate.clock import Clock
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.due import Due
from sluicegate.limiter.fed import FedTable, Shared
from sluicegate.limiter.segmented import Segmented
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import SubjectEntry
from sluicegate.rules.model import SUBJECT_KINDS
from sluicegate.stores.base import Charge, Counter
from sluicegate.stores.keys import subject_of

__all__ = ["Override", "SubjectTable"]

_JOIN: Final = "|"

_Known: TypeAlias = tuple[str | None, int, int, int | None, tuple[str, ...]]
"""An entry without its subject; entries that say the same share one."""


class Override(NamedTuple):
    """A factor for one subject. ``part``: the subject as it stands in the keys of counters. ``until_us`` None: without end.

    ``rules``: the names of the rules it is for; empty: every rule that counts the subject.
    """

    subject: str
    part: str
    numerator: int
    denominator: int
    until_us: int | None
    rules: tuple[str, ...]

    def concerns(self, rule: str, subject: str) -> bool:
        """Whether the counter of this rule and subject is the subject's."""
        if subject != self.part and (_JOIN not in subject or self.part not in subject.split(_JOIN)):
            return False
        return not self.rules or rule in self.rules


class _State:
    """All subjects at one time. ``put`` and ``remove`` are for who has the lock."""

    __slots__ = ("overrides", "subjects")

    def __init__(self) -> None:
        self.subjects: Segmented[str, _Known] = Segmented()
        self.overrides: Segmented[str, Override] = Segmented()

    def put(self, subject: str, known: _Known) -> None:
        self.subjects[subject] = known
        _, numerator, denominator, until_us, rules = known
        if numerator == denominator:
            self.overrides.pop(subject)
            return
        dimension, _, value = subject.partition(":")
        part = subject_of(((dimension, value),))
        self.overrides[subject] = Override(subject, part, numerator, denominator, until_us, rules)

    def remove(self, subject: str) -> bool:
        self.overrides.pop(subject)
        return self.subjects.pop(subject) is not None


class SubjectTable(FedTable[_State, SubjectEntry, str]):
    """Tiers and overrides by subject. Looking up takes no lock.

    At most ``SUBJECTS_IN_NODE_MAX`` subjects; where there are more, the tier has to come with the request, as a verified fact.
    ``active``: whether there is any; ``overriding``: whether there is any override.
    """

    __slots__ = ("_due", "_known", "_scaled", "active", "overriding")

    def __init__(self, clock: Clock, changed: Callable[[], None] | None = None) -> None:
        super().__init__("subjects", clock, changed)
        self._known: Shared[_Known] = Shared()
        self._due: Due[str] = Due()
        # By identity: to hash a counter takes longer than to decide by it. The entry keeps its counter, so no id is used twice.
        self._scaled: dict[tuple[int, int, int], tuple[Counter, Counter]] = {}
        self.active = False
        self.overriding = False

    def __len__(self) -> int:
        return len(self._state.subjects)

    @property
    def overrides(self) -> int:
        """How many subjects have an override; some that have ended may be among them for a minute after the next change."""
        return len(self._state.overrides)

    # ------------------------------------------------------------------ looking up

    def tier_of(self, facts: Facts) -> str | None:
        """The tier of the first of the request's subjects that has one; None where none has."""
        subjects = self._state.subjects
        for dimension, value in (("api_key", facts.api_key), ("user", facts.user), ("tenant", facts.tenant)):
            if value:
                known = subjects.get(f"{dimension}:{value}")
                if known is not None and known[0] is not None:
                    return known[0]
        return None

    def overrides_of(self, facts: Facts) -> list[Override]:
        """The overrides of the request's subjects that have not ended, in the order in which they are asked."""
        overrides = self._state.overrides
        found: list[Override] = []
        for dimension, value in (("api_key", facts.api_key), ("user", facts.user), ("tenant", facts.tenant)):
            if value:
                override = overrides.get(f"{dimension}:{value}")
                if override is not None and (override.until_us is None or self._clock.now_us() < override.until_us):
                    found.append(override)
        return found

    def scale(self, charge: Charge, rule: str, overrides: Iterable[Override]) -> Charge:
        """The charge by the numbers of the first override that concerns it; itself where none does."""
        for override in overrides:
            if override.concerns(rule, charge[1]):
                return self._scaled_counter(charge[0], override), charge[1], charge[2]
        return charge

    def get(self, subject: str) -> SubjectEntry | None:
        """What is known of a subject; None where nothing is. An override may have ended."""
        known = self._state.subjects.get(subject)
        return None if known is None else SubjectEntry(subject, *known)

    # ------------------------------------------------------------------ changing

    def remove(self, subject: str) -> bool:
        """Forget a subject; whether it was known."""
        with self._lock:
            found = self._state.remove(subject)
            self._note_change()
        return found

    # ------------------------------------------------------------------ inside

    def _fresh(self) -> _State:
        return _State()

    def _fill(self, state: _State, put: Iterable[SubjectEntry], remove: Iterable[str]) -> None:
        for subject in remove:
            state.remove(subject)
        for entry in put:
            state.put(entry.subject, self._read(entry))
            self._check_room(len(state.subjects), SUBJECTS_IN_NODE_MAX)

    def _change(self, put: Iterable[SubjectEntry], remove: Iterable[str]) -> None:
        read = [(entry.subject, self._read(entry)) for entry in put]
        with self._lock:
            self._prune()
            state = self._state
            if len(state.subjects) + len(read) > SUBJECTS_IN_NODE_MAX:
                new = len({subject for subject, _ in read if subject not in state.subjects})
                self._check_room(len(state.subjects) + new, SUBJECTS_IN_NODE_MAX)
            for subject in remove:
                state.remove(subject)
            for subject, known in read:
                state.put(subject, known)
                self._note_end(subject)
            self._note_change()

    def _serve(self, state: _State) -> None:
        with self._lock:
            self._state = state
            self._note_ends()
            self._note_change()

    def _note_end(self, subject: str) -> None:
        override = self._state.overrides.get(subject)
        if override is None or override.until_us is None:
            return
        self._due.add(override.until_us, subject)
        if self._due.notes > 2 * len(self._state.overrides) + LIST_DUE_SPARE:
            self._note_ends()

    def _note_ends(self) -> None:
        """Write the notes of what ends anew."""
        self._due = Due()
        for subject, override in self._state.overrides.items():
            if override.until_us is not None:
                self._due.add(override.until_us, subject)

    def _forget_ended(self, now_us: int) -> None:
        state = self._state
        for subject in self._due.take(now_us):
            override = state.overrides.get(subject)
            if override is not None and override.until_us is not None and override.until_us <= now_us:
                del state.overrides[subject]
                if state.subjects[subject][0] is None:
                    del state.subjects[subject]

    def _note_change(self) -> None:
        self.active = bool(self._state.subjects)
        self.overriding = bool(self._state.overrides)
        super()._note_change()

    def _read(self, entry: SubjectEntry) -> _Known:
        """What an entry says, checked."""
        # Nobody has checked the types of what a caller made himself.
        fields: tuple[Any, ...] = msgspec.structs.astuple(entry)
        subject, tier, numerator, denominator, until_us, rules = fields
        dimension, _, value = subject.partition(":") if isinstance(subject, str) else ("", "", "")
        if dimension not in SUBJECT_KINDS or not value or len(subject) > LIST_VALUE_CHARS_MAX:
            forms = " or ".join(f"{name}:NAME" for name in SUBJECT_KINDS)
            raise InvalidRequest("subject", f"want {forms}, got {subject!r:.64}")
        if not (tier is None or (isinstance(tier, str) and 0 < len(tier) <= LIST_VALUE_CHARS_MAX)):
            raise InvalidRequest("tier", f"want the name of a tier or None, got {tier!r:.64}")
        for name, number in (("factor_numerator", numerator), ("factor_denominator", denominator)):
            if not (type(number) is int and 1 <= number <= SUBJECT_FACTOR_PART_MAX):
                raise InvalidRequest(name, f"want a whole number in 1..{SUBJECT_FACTOR_PART_MAX}, got {number!r:.64}")
        if not (until_us is None or (type(until_us) is int and until_us >= 0)):
            raise InvalidRequest("until_us", f"want microseconds >= 0 or None, got {until_us!r:.64}")
        if not all(isinstance(rule, str) for rule in rules):
            raise InvalidRequest("rules", f"want names of rules, got {rules!r:.64}")
        return self._known[tier, numerator, denominator, until_us, tuple(rules)]

    def _scaled_counter(self, counter: Counter, override: Override) -> Counter:
        key = (id(counter), override.numerator, override.denominator)
        found = self._scaled.get(key)
        if found is None:
            if len(self._scaled) >= COUNTER_MEMO_MAX:
                self._scaled.clear()
            spec = scaled_spec(counter.spec, override.numerator, override.denominator)
            # Used tokens stay used whatever the rule says of changes of its numbers: an override is none.
            found = self._scaled[key] = (counter, counter._replace(spec=spec, on_change=OnChange.KEEP))
        return found[1]
