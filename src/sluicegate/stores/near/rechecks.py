"""When a process asks again for a counter that the store has refused.

After the store's wait, where nobody else is about. Where several processes are asked for one counter again and again, each of them would ask for every
token that comes back, and one of them would get it: of N processes N ask for one token. So a refusal lasts longer where there is evidence of that:
checks came here too early a few times, and the store refuses again because somebody else took what had come back. Then the next one lasts twice as
long, then four times; it falls to half with each time that asking was worth it. So
a process that alone is asked for a counter never refuses for longer than the store said.

Nothing is lost by that while what comes back is kept for whoever asks first, so a refusal lasts for a part of the counter only: see ``room_us``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluicegate.algorithms import LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.algorithms.spec import Spec

__all__ = ["HAMMERED", "Rechecks", "room_us"]

HAMMERED: Final = 3
"""Refusals that a process has repeated, by which it knows that somebody does not wait. Whoever comes back when he was told meets none."""

_BUCKET_PARTS: Final = 4
"""A bucket fills by a quarter at most while nobody asks, so nothing flows over."""
_WINDOW_PARTS: Final = 16
"""What a sliding window could admit and does not is gone for one window: a sixteenth of it at most while nobody asks."""
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Rechecks:
    """``terms``: how far clocks are trusted. ``trust_us``: the longest that a refusal lasts; ``stretch_max_us``: the same where it lasts longer than the store said, 0 for never."""

    terms: LeaseTerms
    trust_us: int
    stretch_max_us: int = 0

    def plain_us(self, retry_after_us: int) -> int:
        """How long a refusal certainly is one, counted from the question."""
        return min(self.terms.usable_us(retry_after_us), self.trust_us)

    def stretched_us(self, spec: Spec, retry_after_us: int, factor: int, sent_us: int) -> int:
        """How long it lasts where it is repeated often, ``factor`` times as long as the store said. At least ``plain_us``.

        Up to a quarter less, by the question's time: processes that were refused together are not to ask together.
        """
        plain_us = self.plain_us(retry_after_us)
        if factor < 2:
            return plain_us
        longest_us = min(retry_after_us * factor, room_us(spec), self.stretch_max_us)
        return max(plain_us, longest_us - longest_us * (sent_us & 255) // 1024)

    def due_us(self, retry_after_us: int, came_us: int) -> int:
        """When the cost passes at the latest if nobody else asks, by the clocks that are most wrong."""
        drift = self.terms.drift_ppm
        return came_us - (-retry_after_us * (_MILLION + drift) // (_MILLION - drift))

    def taken(self, retry_after_us: int, sent_us: int, due_us: int) -> bool:
        """Whether somebody else was admitted since a refusal whose cost should have passed at ``due_us``: now it passes later, by any clock."""
        return sent_us + self.terms.usable_us(retry_after_us) > due_us

    @staticmethod
    def factor(before: int, nodes: int, *, passed: bool, taken: bool) -> int:
        """How many times as long as the store says the next refusal lasts; ``before``: the last one did. At most one time for each of ``nodes`` processes.

        ``passed``: asking was worth it. ``taken``: it was not, because somebody else was admitted, though checks hammer here.
        """
        if passed:
            return max(before // 2, 1)
        return max(min(2 * before, nodes), 1) if taken else before


def room_us(spec: Spec) -> int:
    """For how long nobody may ask for a counter so that hardly anything of it is lost; 0 where a refusal is not to last longer than the store said.

    A bucket keeps what comes back until it is full. A sliding window does not: what is admitted later is in the way for as much longer. Fixed windows
    end for all at the same time, and nobody takes the one token that all wait for.
    """
    if isinstance(spec, (TokenBucket, LeakyBucket)):
        return spec.window_us // _BUCKET_PARTS
    if isinstance(spec, (SlidingWindow, SlidingLog)):
        return spec.window_us // _WINDOW_PARTS
    return 0
