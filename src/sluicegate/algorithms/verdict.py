"""What one counter says of one charge."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "ALLOWED",
    "DENIED",
    "NEVER_FITS",
    "NOT_ASKED",
    "Brief",
    "LocalVerdict",
    "Outcome",
    "Verdict",
    "new_local_verdict",
    "new_verdict",
]


class Outcome(StrEnum):
    """The four answers a limiter can give; there is no fifth."""

    ALLOWED = "allowed"
    DENIED = "denied"
    """Not now; ``retry_after_us`` says when."""
    NEVER_FITS = "never_fits"
    """The cost is above the counter's capacity: waiting does not help."""
    UNDECIDED = "undecided"
    """The store failed; the rule's failure policy decides."""


class Verdict(NamedTuple):
    """One counter's answer, in integer microseconds relative to the time of the decision.

    ``remaining``: tokens left after this charge when allowed, else what is left now (>= 0).
    ``retry_after_us``: 0 when allowed; the wait after which this cost passes if nobody else asks;
    None when it never fits. ``reset_after_us``: when allowed, until the counter is full again (bucket)
    or its window ends; when refused, equal to ``retry_after_us`` (0 when never). ``delay_us``: how long the
    caller must hold the request (leaky bucket only, else 0).
    """

    outcome: Outcome
    remaining: int
    retry_after_us: int | None
    reset_after_us: int
    delay_us: int = 0


class LocalVerdict(Verdict):
    """A verdict of a process that did not ask the store, of a counter that the store keeps: as things stood when that answered last.

    What passed has passed and what is refused is refused; ``remaining`` (0 for a refusal), ``retry_after_us`` and ``reset_after_us`` are estimates.
    A wait is that of the lowest cost that was refused, which is too short for a higher one.
    """

    __slots__ = ()


# A verdict is made for every counter of every described decision. Named tuples are made by a Python function and enum members
# are found through their class, each of which costs as much as the arithmetic; these cost next to nothing.

ALLOWED: Final = Outcome.ALLOWED
DENIED: Final = Outcome.DENIED
NEVER_FITS: Final = Outcome.NEVER_FITS

new_verdict: Final[Callable[[tuple[Outcome, int, int | None, int, int]], Verdict]] = partial(tuple.__new__, Verdict)
"""A Verdict of all its five fields, in order."""

new_local_verdict: Final[Callable[[tuple[Outcome, int, int | None, int, int]], LocalVerdict]] = partial(
    tuple.__new__, LocalVerdict
)
"""A LocalVerdict of all its five fields, in order."""

NOT_ASKED: Final = Verdict(Outcome.UNDECIDED, 0, 0, 0)
"""Of a counter that nobody looked at, because the request was refused before: no wait, so it refuses nobody."""


Brief: TypeAlias = tuple[bool, int, int | None]
"""(admitted, remaining, wait in microseconds): the numbers of a verdict where many are wanted at once.

The wait is ``reset_after_us`` of a pass and ``retry_after_us`` of a refusal, None where the cost never fits.
"""
