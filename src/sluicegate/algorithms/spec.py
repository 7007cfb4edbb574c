"""The shape every algorithm has: a frozen specification with pure functions of (state, now, cost).

An algorithm object holds only numbers. It never reads a clock, keeps no state and does no I/O; the store owns
the state, passes it in and keeps what comes back. ``None`` is the state of a counter that does not exist,
which is the same as one that has fully recovered. A state is opaque outside its algorithm.

Deciding is split in two, because most callers only ask for yes or no: ``admit`` decides and gives the new state,
``verdict`` describes (remaining, retry, reset). Both look at the same state and the same ``now_us``, so
they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from sluicegate.algorithms.verdict import Brief, Verdict

__all__ = ["ColumnSpec", "OnChange", "Spec", "State", "UnitSpec"]

State: TypeAlias = Any
"""Opaque, immutable state of one counter: an int or a tuple of ints. Never None once a charge was admitted."""


class OnChange(StrEnum):
    """What happens to a live counter when the numbers of its rule change."""

    KEEP = "keep"
    """Tokens used stay used: 40 used of 100 becomes 40 used of 200. Used is capped at one new drain."""
    SCALE = "scale"
    """The used fraction stays: 40 used of 100 becomes 80 used of 200."""
    RESET = "reset"
    """The counter starts full under the new numbers."""


class Spec(Protocol):
    """One algorithm with its numbers: immutable, hashable, equal when all numbers are equal.

    In every method ``now_us`` is the store's time. A ``now_us`` before the state's own time counts as no time
    passed: it never leaves more remaining. ``cost`` >= 1 unless said otherwise; callers validate it.
    """

    algorithm: ClassVar[str]

    @property
    def capacity(self) -> int:
        """The most tokens one request may take at once: bucket capacity or window limit (>= 0)."""
        ...

    @property
    def window_us(self) -> int:
        """The window, or for a bucket the time a drained one takes to fill; >= 1."""
        ...

    @property
    def shape(self) -> str:
        """What the counter's key carries of the spec: a change of it starts a new counter.

        Window length, alignment and sub-windows for windows; constant for buckets. Never limits or rates.
        """
        ...

    def admit(self, state: State | None, now_us: int, cost: int) -> State | None:
        """The state after charging ``cost``, or None when it does not fit now. Changes nothing itself."""
        ...

    def verdict(self, state: State | None, now_us: int, cost: int, admitted: bool) -> Verdict:
        """Describe the answer of ``admit`` at the same ``now_us``.

        ``state`` is the state *after* the charge when ``admitted``, else the state before. ``cost`` 0 with
        ``admitted`` describes the counter as it stands (a peek).
        """
        ...

    def clamp(self, state: State, now_us: int) -> State:
        """``state`` itself, unless the clock was set back: then the same use as of now.

        A state that no clock within ``bounds.CLOCK_BEHIND_US_MAX`` of now can have written lies in the future. Every
        method reads it as if it were clamped; the store also writes it back on a *refusal* (where the result is not
        ``state``), so that nobody is locked out longer than one full drain or window of the new time, plus that
        tolerance. A clamped state never has more remaining.
        """
        ...

    def expires_us(self, state: State) -> int:
        """The time from which this state is the same as no state; the store may forget it then."""
        ...

    def charge_refused(self, state: State | None, now_us: int, cost: int) -> State:
        """The state after a *refused* hit that counts (``denied_counts``), at most one full drain used.

        A cost above the capacity counts nothing: the state is returned as it is (for None, one that has recovered).
        """
        ...

    def refund(self, state: State, now_us: int, cost: int, charged_us: int) -> State:
        """The state after giving back a charge of ``cost`` admitted at ``charged_us``.

        Gives back only what the passing of time has not given back already (DESIGN: receipts); the state is
        returned unchanged where nothing is due. The caller guarantees once-only.
        """
        ...

    def grant(self, state: State, now_us: int, tokens: int) -> tuple[State, int]:
        """Give back up to ``tokens`` (>= 1) of what is used, whoever used it: (the state after, tokens given back).

        What would come back last is given back first: the newest of a window, the end of a queue. Never more than is used; a part of a
        token counts as one. Where nothing is used the state is returned as it is, with 0.
        """
        ...

    def carry(self, old: Spec, state: State, now_us: int, how: OnChange) -> State | None:
        """The state under this spec of a counter last written under ``old`` (same algorithm and shape)."""
        ...

    def most_admitted(self, interval_us: int) -> int:
        """The bound: most tokens admitted in any half-open interval of this length."""
        ...

    def state_bytes(self) -> int:
        """Largest memory of one state in this process, in bytes, estimated for ``rules bounds``."""
        ...


@runtime_checkable
class ColumnSpec(Spec, Protocol):
    """An optional ability: deciding many counters of one spec that a store keeps in a list."""

    def admit_column(self, states: list[State | None], slots: Iterable[int], cost: int, now_us: int) -> list[Brief]:
        """Charge ``cost`` >= 1 to each ``states[slot]`` in place, one after the other; a slot may come more than once.

        The same as ``admit`` and ``verdict`` for each, with a refused state written back as ``clamp`` gives it.
        """
        ...


@runtime_checkable
class UnitSpec(Spec, Protocol):
    """An optional ability: a function for the usual charge, one token from a counter that exists."""

    def unit_admit(self) -> Callable[[State, int], State | None]:
        """``(state, now_us) -> admit(state, now_us, 1)`` for states that are not None, with the numbers of the spec built in."""
        ...
