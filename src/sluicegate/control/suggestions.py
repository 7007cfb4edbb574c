"""Proposals of other numbers for the rules in service, as they are asked for and told."""

from __future__ import annotations

from msgspec import Struct

from sluicegate.bounds import TOP_WINDOW_S_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import InvalidRequest
from sluicegate.rules.proposals import Suggestion

__all__ = ["SuggestionsAnswer", "SuggestionsQuestion"]


class SuggestionsQuestion(Struct, frozen=True):
    """What is asked: by the traffic from ``since_us`` up to and without ``until_us``. Raises InvalidRequest, which names the field.

    ``rule``, ``tier``: only of those; None: of all. ``floors``: ``RULE=QUOTA`` or ``RULE:TIER=QUOTA``, below which nothing is proposed.
    ``target_share``: of the clients that shall never be refused.
    """

    since_us: int
    until_us: int
    rule: str | None = None
    tier: str | None = None
    floors: tuple[str, ...] = ()
    target_share: float = 0.995

    def __post_init__(self) -> None:
        if not 0 <= self.since_us <= self.until_us < 2**53:
            raise InvalidRequest("since", f"must be before until, got {self.since_us} to {self.until_us} us")
        if self.until_us - self.since_us > TOP_WINDOW_S_MAX * US_PER_S:
            raise InvalidRequest("window", f"must be at most {TOP_WINDOW_S_MAX // 86_400} days")
        if not 0.5 <= self.target_share <= 0.9999:
            raise InvalidRequest("target", f"must be in 0.5..0.9999, got {self.target_share:g}")


class SuggestionsAnswer(Struct, frozen=True):
    """Proposals for the rules of ``version``, in their order, by the traffic from ``since_us`` until ``until_us``."""

    version: int
    since_us: int
    until_us: int
    suggestions: list[Suggestion]
