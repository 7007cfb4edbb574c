"""Did any interval of a history admit more than a bucket's bound? A sweep over all intervals, in one pass."""

from __future__ import annotations

from sluicegate.algorithms.token_bucket import TokenBucket

__all__ = ["Sweep"]


class Sweep:
    """Admissions of one bucket, told in order of time. ``excess`` is the most by which any interval exceeds ``capacity + rate * its length``; 0 for none.

    Of all intervals that end now, the one with most excess begins where (admitted before it - rate * its start) is least: one running minimum
    stands for every start. It is the drain of a bucket that nobody refuses: the level below empty is the excess.
    """

    def __init__(self, spec: TokenBucket) -> None:
        self.spec = spec
        self.excess = 0
        self.total = 0
        self._debt = 0
        self.last_us = 0
        """Of the last admission."""

    def admitted(self, time_us: int, tokens: int) -> None:
        """``tokens`` (>= 0) passed at ``time_us``. ValueError where time goes back."""
        if time_us < self.last_us:
            raise ValueError(f"time_us: goes back from {self.last_us} to {time_us}")
        spec = self.spec
        self._debt = max(0, self._debt - (time_us - self.last_us) * spec.tokens) + tokens * spec.period_us
        self.last_us = time_us
        self.total += tokens
        over = self._debt - spec.capacity * spec.period_us
        if over > 0:
            self.excess = max(self.excess, -(-over // spec.period_us))

    def changed(self, spec: TokenBucket) -> None:
        """The numbers changed: intervals that begin before are not compared with the new ones, those that begin from now on are."""
        self.spec = spec
        self._debt = 0
        self.excess = 0
