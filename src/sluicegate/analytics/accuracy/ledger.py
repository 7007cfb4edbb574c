"""What one counter admitted, held against its promise as it goes: one pass, bounded memory.

A bucket of capacity B and rate r promises that every interval of length d holds at most B + r * d. All intervals are checked at once by a level that
every admission raises by its cost and time lowers at the rate, never below 0: it is above B exactly when some interval that ends now holds more than its
bound (the maximum over all suffixes of a sum, as in Kadane's method; Turner 1986 for the bucket as a meter). Windows promise a number of tokens in any
stretch of one window's length, or in each window that begins at a multiple of it.

Times of several nodes agree only so far. ``slack_us`` is how far two of them may be wrong against each other; what it can explain is not reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Final, NamedTuple

from sluicegate.bounds import ACCURACY_CELLS_MAX, ACCURACY_GIVEN_US
from sluicegate.clock import US_PER_S
from sluicegate.events import Admission

__all__ = ["BucketLedger", "FixedLedger", "Ledger", "Numbers", "WindowLedger", "ledger_of"]

_DAY_US: Final = 86_400 * US_PER_S
_GIVEN_MAX: Final = 64


class Numbers(NamedTuple):
    """The numbers of a counter, as an Admission tells them."""

    algorithm: str
    capacity: int
    tokens: int
    period_us: int
    window_us: int

    @classmethod
    def of(cls, ask: Admission) -> Numbers:
        return cls(ask.algorithm, ask.capacity, ask.tokens, ask.period_us, ask.window_us)


class Ledger(ABC):
    """One counter under one or, while they change, several numbers in turns; the loosest of those in use within a window bind.

    ``admit`` tells how many tokens too many there are with the admission, ``room`` whether a cost would have fitted beyond doubt (None: not known). Times must
    not go back. ``made_us``: when the ledger began; ``began_us``: since when nothing can be missing in it.
    """

    def __init__(self, numbers: Numbers, began_us: int, slack_us: int) -> None:
        self.numbers = numbers
        self.began_us = self.made_us = began_us
        self.slack_us = slack_us
        self._used: dict[Numbers, int] = {numbers: began_us}
        # [until when they are set against admissions, tokens], by time.
        self._given: deque[list[int]] = deque()

    def use(self, numbers: Numbers, now_us: int) -> None:
        """The counter is asked under these numbers, of the same algorithm."""
        self._used[numbers] = now_us
        if len(self._used) == 1:
            return
        longest_us = max(each.window_us for each in self._used) + 2 * self.slack_us
        self._used = {each: last_us for each, last_us in self._used.items() if now_us - last_us <= longest_us}
        self._take(self._loosest())

    def admit(self, now_us: int, cost: int) -> int:
        """Count an admission; how many tokens too many there are with it."""
        given = self._given
        while given and given[0][0] < now_us:
            until_us, tokens = given.popleft()
            self._lower(until_us, tokens)
        while given and cost:
            used = min(cost, given[0][1])
            cost -= used
            given[0][1] -= used
            if not given[0][1]:
                given.popleft()
        return self._add(now_us, cost) if cost else 0

    def give_back(self, now_us: int, tokens: int) -> None:
        """Up to ``tokens`` were given back.

        They are set against what is admitted next, and what is left of them after ACCURACY_GIVEN_US is taken off. So it does not matter whether the charge, or
        the admission that they made room for, is told as a little earlier or later; and time drains what is there meanwhile as it does in the counter.
        """
        self.began_us = max(self.began_us, now_us)
        given, until_us = self._given, now_us + ACCURACY_GIVEN_US
        if given and (given[-1][0] >= until_us or len(given) >= _GIVEN_MAX):
            given[-1][0] = max(given[-1][0], until_us)
            given[-1][1] += tokens
        else:
            given.append([until_us, tokens])

    @abstractmethod
    def _add(self, now_us: int, cost: int) -> int: ...

    @abstractmethod
    def _lower(self, now_us: int, tokens: int) -> None:
        """Take off so many tokens, as far as there are any."""
        ...

    @abstractmethod
    def room(self, now_us: int, cost: int) -> bool | None: ...

    def _take(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def _loosest(self) -> Numbers:
        used = list(self._used)
        fastest = used[0]
        for each in used[1:]:
            if each.tokens * fastest.period_us > fastest.tokens * each.period_us:
                fastest = each
        capacity, window_us = max(each.capacity for each in used), max(each.window_us for each in used)
        return fastest._replace(capacity=capacity, window_us=window_us)

    @property
    def _is_mixed(self) -> bool:
        return len(self._used) > 1


class BucketLedger(Ledger):
    """Token bucket and leaky bucket. The level is in 1 / ``tokens`` microseconds; a token is ``period_us`` of them."""

    def __init__(self, numbers: Numbers, began_us: int, slack_us: int) -> None:
        super().__init__(numbers, began_us, slack_us)
        self._level, self._last_us = 0, began_us

    def _add(self, now_us: int, cost: int) -> int:
        numbers = self.numbers
        self._level = self._at(now_us) + cost * numbers.period_us
        self._last_us = now_us
        most = numbers.capacity * numbers.period_us + 2 * self.slack_us * numbers.tokens
        return max(0, -(-(self._level - most) // numbers.period_us))

    def room(self, now_us: int, cost: int) -> bool | None:
        if self._is_mixed or now_us - self.began_us < self.numbers.window_us:
            return None
        numbers = self.numbers
        level = self._at(now_us) + 2 * self.slack_us * numbers.tokens
        return level + cost * numbers.period_us <= numbers.capacity * numbers.period_us

    def _lower(self, now_us: int, tokens: int) -> None:
        self._level = max(0, self._at(now_us) - tokens * self.numbers.period_us)
        self._last_us = max(now_us, self._last_us)

    def _at(self, now_us: int) -> int:
        return max(self._level - max(0, now_us - self._last_us) * self.numbers.tokens, 0)

    def _take(self, numbers: Numbers) -> None:
        # Rounded down: a change of numbers never makes an excess.
        self._level = self._level * numbers.period_us // self.numbers.period_us
        super()._take(numbers)


class FixedLedger(Ledger):
    """A fixed window of less than a day: one count for each window that begins at a multiple of it since 1970.

    An admission within the slack of a border may belong to the window on either side; it is put where there is room.
    """

    def __init__(self, numbers: Numbers, began_us: int, slack_us: int) -> None:
        super().__init__(numbers, began_us, slack_us)
        self._window, self._count, self._before, self._late = 0, 0, 0, 0

    def _add(self, now_us: int, cost: int) -> int:
        self._turn(now_us)
        capacity, window_us = self.numbers.capacity, self.numbers.window_us
        near = now_us % window_us < 2 * self.slack_us
        if near and self._before + cost <= capacity:
            self._before += cost
            return 0
        self._count += cost
        if window_us - now_us % window_us <= 2 * self.slack_us:
            # It may have been charged in the next window, which then has less room.
            self._late += cost
        return max(0, self._count - self._late - capacity)

    def room(self, now_us: int, cost: int) -> bool | None:
        if self._is_mixed or now_us - self.began_us < 2 * self.numbers.window_us:
            return None
        self._turn(now_us)
        place_us = now_us % self.numbers.window_us
        if min(place_us, self.numbers.window_us - place_us) <= 2 * self.slack_us:
            return None
        return self._count + self._before + cost <= self.numbers.capacity

    def _lower(self, now_us: int, tokens: int) -> None:
        self._turn(now_us)
        # Of which window it was is not told; taken off wherever it may have been, it can hide an excess and make none.
        self._count, self._before = max(0, self._count - tokens), max(0, self._before - tokens)
        self._late = min(self._late, self._count)

    def _turn(self, now_us: int) -> None:
        window = now_us // self.numbers.window_us
        if window > self._window:
            over = min(self._late, max(0, self._count - self.numbers.capacity))
            follows = window == self._window + 1
            # ``_before``: of the window before, so far as it can still take what comes at its border.
            self._before = self._count if follows else 0
            self._count = over if follows else 0
            self._window, self._late = window, 0

    def _take(self, numbers: Numbers) -> None:
        if numbers.window_us != self.numbers.window_us:
            self._window, self._count, self._before, self._late = 0, 0, 0, 0
        super()._take(numbers)


class WindowLedger(Ledger):
    """At most so many tokens in any stretch of one window's length: ``times`` the capacity, less ``less``.

    Admissions are kept in cells of a thousandth of a window; a cell leaves with its first admission, so a cell never makes an excess.
    """

    def __init__(self, numbers: Numbers, began_us: int, slack_us: int, times: int, less: int) -> None:
        super().__init__(numbers, began_us, slack_us)
        self._times, self._less = times, less
        self._cells: deque[list[int]] = deque()
        self._sum = 0

    def _add(self, now_us: int, cost: int) -> int:
        self._leave(now_us)
        cells = self._cells
        if cells and now_us - cells[-1][0] < self.numbers.window_us // ACCURACY_CELLS_MAX:
            cells[-1][1] += cost
        else:
            cells.append([now_us, cost])
        self._sum += cost
        return max(0, self._sum - max(self._times * self.numbers.capacity - self._less, self.numbers.capacity))

    def room(self, now_us: int, cost: int) -> bool | None:  # noqa: ARG002 - an estimate's room is its own to say
        return None

    def _lower(self, now_us: int, tokens: int) -> None:
        self._leave(now_us)
        # Off the newest, which would stay longest.
        while tokens and self._cells:
            off = min(tokens, self._cells[-1][1])
            self._cells[-1][1] -= off
            self._sum -= off
            tokens -= off
            if not self._cells[-1][1]:
                self._cells.pop()

    def _leave(self, now_us: int) -> None:
        ends_us = now_us - max(self.numbers.window_us - 2 * self.slack_us, 1)
        while self._cells and self._cells[0][0] <= ends_us:
            self._sum -= self._cells.popleft()[1]


def ledger_of(numbers: Numbers, began_us: int, slack_us: int) -> Ledger | None:
    """The ledger of a counter with these numbers; None for an algorithm that makes no promise known here."""
    if numbers.algorithm in ("token_bucket", "leaky_bucket"):
        return BucketLedger(numbers, began_us, slack_us) if numbers.tokens and numbers.period_us else None
    if numbers.window_us < 1:
        return None
    if numbers.algorithm == "fixed_window" and numbers.window_us % _DAY_US:
        return FixedLedger(numbers, began_us, slack_us)
    # A window of whole days may begin by a calendar, so that one of its length can touch two.
    promises = {"fixed_window": (2, 0), "sliding_window": (2, 1), "sliding_log": (1, 0)}
    found = promises.get(numbers.algorithm)
    return None if found is None else WindowLedger(numbers, began_us, slack_us, *found)
