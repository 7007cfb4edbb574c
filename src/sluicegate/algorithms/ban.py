"""The limit of zero: nothing is ever admitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sluicegate.algorithms.spec import OnChange, Spec, State
from sluicegate.algorithms.verdict import Outcome, Verdict

__all__ = ["Ban"]


@dataclass(frozen=True, slots=True)
class Ban:
    """Refuses every cost, for ever: no wait helps, and nothing is kept.

    A peek (cost 0) is answered as for any counter: allowed, with nothing remaining. State: never written by a charge;
    a counter left over from other numbers is ignored.
    """

    algorithm: ClassVar[str] = "ban"

    @property
    def capacity(self) -> int:
        """0."""
        return 0

    @property
    def window_us(self) -> int:
        """1, the shortest there is: a ban has no window."""
        return 1

    @property
    def shape(self) -> str:
        """Always the same."""
        return "-"

    def admit(self, state: State | None, now_us: int, cost: int) -> State | None:  # noqa: ARG002
        """Never: None."""
        return None

    def verdict(self, state: State | None, now_us: int, cost: int, admitted: bool) -> Verdict:  # noqa: ARG002
        """NEVER_FITS, unless it describes a peek."""
        return Verdict(Outcome.ALLOWED, 0, 0, 0) if admitted else Verdict(Outcome.NEVER_FITS, 0, None, 0)

    def clamp(self, state: State, now_us: int) -> State:  # noqa: ARG002
        """The state: it says nothing."""
        return state

    def expires_us(self, state: State) -> int:  # noqa: ARG002
        """0: any state may be forgotten."""
        return 0

    def charge_refused(self, state: State | None, now_us: int, cost: int) -> State:  # noqa: ARG002
        """There is nothing to charge."""
        return 0 if state is None else state

    def refund(self, state: State, now_us: int, cost: int, charged_us: int) -> State:  # noqa: ARG002
        """Nothing was charged."""
        return state

    def grant(self, state: State, now_us: int, tokens: int) -> tuple[State, int]:  # noqa: ARG002
        """Nothing is used."""
        return state, 0

    def carry(self, old: Spec, state: State, now_us: int, how: OnChange) -> State | None:  # noqa: ARG002
        """Nothing is kept."""
        return None

    def most_admitted(self, interval_us: int) -> int:  # noqa: ARG002
        """0."""
        return 0

    def state_bytes(self) -> int:
        """0."""
        return 0
