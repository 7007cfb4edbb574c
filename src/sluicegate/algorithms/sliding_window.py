"""Sliding window, in two forms of one idea: few integers instead of the time of every hit.

The *estimate* (default) keeps the counts of the current and the previous aligned window and assumes the previous
one's hits were spread evenly: it weighs their count by the part of that window still in view. Where they were not
even, a window can hold up to twice the limit less one. The *strict* form cuts the window into sub-windows and counts
the oldest whole, so it errs on the other side only.

Source of the estimate: the "sliding window counter", published by Cloudflare (2017) and others before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sluicegate.algorithms._fields import check_capacity, check_integer
from sluicegate.algorithms._sliding_estimate import Estimate
from sluicegate.algorithms._sliding_strict import Strict
from sluicegate.algorithms.spec import OnChange, Spec, State
from sluicegate.algorithms.verdict import ALLOWED, DENIED, NEVER_FITS, Verdict, new_verdict
from sluicegate.bounds import SUB_WINDOWS_MAX, WINDOW_US_MAX

__all__ = ["SlidingWindow"]


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """About (``sub_windows`` None) or at most (``sub_windows`` k) ``limit`` tokens in any ``window_us``.

    None: fewer than 2 * limit in any window; under steady load limit - 1 to limit per window, the share of the last one
    being rounded up; state (start of the
    current window, its count, the previous count). k: never above the limit in any window, at a sustained rate of
    k / (k + 1) of it; sub-windows last ceil(window_us / k); state (number of the newest sub-window, its count, ...,
    the oldest count), k + 2 integers. Windows are aligned to the epoch.

    Full recovery takes two windows (None) or k + 1 sub-windows. A (sub-)window that has not begun was written before the
    clock went back: up to ``bounds.CLOCK_BEHIND_US_MAX`` before its start it counts on, earlier the counts are taken into
    the one of now. ValueError names a number out of range.
    """

    algorithm: ClassVar[str] = "sliding_window"

    limit: int
    window_us: int
    sub_windows: int | None = None
    _form: Estimate | Strict = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_capacity("limit", self.limit)
        check_integer("window_us", self.window_us, 1, WINDOW_US_MAX)
        form: Estimate | Strict = Estimate(self.limit, self.window_us)
        if self.sub_windows is not None:
            check_integer("sub_windows", self.sub_windows, 1, min(SUB_WINDOWS_MAX, self.window_us))
            form = Strict(self.limit, self.sub_windows, -(-self.window_us // self.sub_windows))
        object.__setattr__(self, "_form", form)

    @property
    def capacity(self) -> int:
        """The limit."""
        return self.limit

    @property
    def shape(self) -> str:
        """The window's length, and the number of sub-windows if strict."""
        return str(self.window_us) if self.sub_windows is None else f"{self.window_us}/{self.sub_windows}"

    def admit(self, state: State | None, now_us: int, cost: int) -> State | None:
        """The counts after the charge, or None when it does not fit now."""
        return self._form.admit(state, now_us, cost)

    def verdict(self, state: State | None, now_us: int, cost: int, admitted: bool) -> Verdict:
        """``reset_after_us`` of a pass: until the current window ends, or if strict until all tokens have left."""
        form = self._form
        current: State = form.at(state, now_us)
        remaining = max(self.limit - form.used(current, now_us), 0)
        if admitted:
            return new_verdict((ALLOWED, remaining, 0, form.reset_us(current, now_us), 0))
        if cost > self.limit:
            return new_verdict((NEVER_FITS, remaining, None, 0, 0))
        wait_us = form.wait_us(current, now_us, cost)
        return new_verdict((DENIED, remaining, wait_us, wait_us, 0))

    def clamp(self, state: State, now_us: int) -> State:
        """The counts, moved to now where the clock was set back."""
        current: State = self._form.at(state, now_us)
        return current if current[0] < state[0] else state

    def expires_us(self, state: State) -> int:
        """When the last token has left the sum."""
        return self._form.expires_us(state)

    def charge_refused(self, state: State | None, now_us: int, cost: int) -> State:
        """The counts after a refused hit that counts, used at most the limit.

        Counting hits push the oldest out, so a client who keeps hammering stays refused. A cost that never fits counts
        nothing.
        """
        current: State = self._form.at(state, now_us)
        if cost > self.limit:
            return current if state is None else state
        return self._form.refused(current, now_us, cost)

    def refund(self, state: State, now_us: int, cost: int, charged_us: int) -> State:
        """Takes the tokens out of the window or sub-window of the charge, while that counts."""
        if now_us >= self._form.expires_us(state):
            return state
        return self._form.refund(state, cost, charged_us)

    def grant(self, state: State, now_us: int, tokens: int) -> tuple[State, int]:
        """See ``Spec``. Tokens of the current (sub-)window first, then of those before it."""
        current: State = self._form.at(state, now_us)
        after, given = self._form.granted(current, now_us, tokens)
        return (after, given) if given else (state, 0)

    def carry(self, old: Spec, state: State, now_us: int, how: OnChange) -> State | None:
        """Counts stay (``keep``) or their share of the limit does (``scale``, rounded up); used at most the limit."""
        if not isinstance(old, SlidingWindow) or old.shape != self.shape or how is OnChange.RESET:
            return None
        current: State = old._form.at(state, now_us)
        if how is OnChange.SCALE:
            current = self._form.scaled(current, old.limit)
        return self._form.capped(current, now_us)

    def most_admitted(self, interval_us: int) -> int:
        """Strict: the limit in any window. Estimate: below twice the limit in any window."""
        return self._form.most_admitted(interval_us)

    def state_bytes(self) -> int:
        """A tuple of 3 or of k + 2 ints."""
        return self._form.state_bytes()
