"""A counter of which parts are granted in advance: the store's side of a lease, as pure functions.

Holders take tokens of a counter in advance and spend them without asking. What must not happen is that a counter recovers what it
has granted and holders spend it as well. So a bucket fills up only to its capacity less what is ``out``, granted and not known to
be spent; tokens that nobody reports are lost with their lease and never credited. With Phi = level + tokens that holders may still
spend, 0 <= Phi <= capacity holds before and after every step; an admission lowers it by one, only time raises it, by the rate: so in
every interval no more is admitted than the bucket's own bound, whatever messages or holders are lost, late, doubled or crashed.

Windows and logs grant by charging: the tokens count in the window in which they are granted, with which the lease ends, or in a log
at the end of the lease. There is nothing to cap.

In every step, in this order: time passes under the *old* ``out``; leases that have ended are written off; reports; what is closed
goes back; a new lease is granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

from sluicegate.algorithms.fixed_window import FixedWindow
from sluicegate.algorithms.leasing.ledger import Lease, Ledger
from sluicegate.algorithms.leasing.terms import LeaseAsk, LeaseGrant, lease_size
from sluicegate.algorithms.sliding_log import SlidingLog
from sluicegate.algorithms.sliding_window import SlidingWindow
from sluicegate.algorithms.spec import OnChange, Spec, State
from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.algorithms.verdict import Verdict
from sluicegate.bounds import LEASED_KEEP_US, LEASES_PER_COUNTER_MAX

__all__ = ["LOST", "Leased", "LeasedState", "Turn"]

LOST = "--------"
"""Who holds what a store that lost its leases takes for granted: nobody, and nobody reports it."""

Leasable: TypeAlias = TokenBucket | FixedWindow | SlidingWindow | SlidingLog


class LeasedState(NamedTuple):
    """A counter's own state (None: it has recovered), with its leases."""

    base: State | None
    ledger: Ledger


class Turn(NamedTuple):
    """One holder's step on one counter: who asks what, and how long the store waits for a lease (``LeaseTerms.hold_us``)."""

    holder: str
    ask: LeaseAsk
    hold_us: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Leased:
    """A ``Spec`` whose state carries leases: it decides exact charges as ``spec`` does, of what is not granted.

    ValueError for a spec that is never leased: a leaky bucket spaces its requests one by one, a ban grants nothing.
    """

    algorithm: ClassVar[str] = "leased"

    spec: Spec

    def __post_init__(self) -> None:
        if not isinstance(self.spec, Leasable):
            raise ValueError(f"spec: a {self.spec.algorithm} is never leased")  # noqa: TRY004 - a number of the rules file

    @property
    def capacity(self) -> int:
        """As ``spec``'s."""
        return self.spec.capacity

    @property
    def window_us(self) -> int:
        """As ``spec``'s."""
        return self.spec.window_us

    @property
    def shape(self) -> str:
        """As ``spec``'s."""
        return self.spec.shape

    # ------------------------------------------------------------------ exact charges

    def settled(self, state: LeasedState, now_us: int) -> LeasedState:
        """The state as an exact charge finds it.

        Of a bucket, time has passed under the old ``out``, and leases that have ended are written off; another counter need not know its
        leases for that.
        """
        return self._as_of(state, now_us) if isinstance(self.spec, TokenBucket) else state

    def _as_of(self, state: LeasedState, now_us: int) -> LeasedState:
        base, ledger = state
        return LeasedState(self._capped(base, ledger, now_us), ledger.written_off(now_us))

    def admit(self, state: State, now_us: int, cost: int) -> LeasedState | None:
        """The state after an exact charge of what is not granted, or None when it does not fit now."""
        base, ledger = self.settled(state, now_us)
        after = self.spec.admit(base, now_us, cost)
        return None if after is None else LeasedState(after, ledger)

    def verdict(self, state: State, now_us: int, cost: int, admitted: bool) -> Verdict:
        """Describes what is not granted."""
        return self.spec.verdict(state.base, now_us, cost, admitted)

    def clamp(self, state: State, now_us: int) -> LeasedState:
        """See ``Spec``."""
        found: LeasedState = state
        if found.base is None:
            return found
        base = self.spec.clamp(found.base, now_us)
        return found if base is found.base else LeasedState(base, found.ledger)

    def expires_us(self, state: State) -> int:
        """``LEASED_KEEP_US`` after the last step, when its own state has recovered and its leases have ended."""
        ends_us: list[int] = [state.ledger.touched_us, *[lease.expires_us for lease in state.ledger.leases]]
        if state.base is not None:
            ends_us.append(self.spec.expires_us(state.base))
        return max(ends_us) + LEASED_KEEP_US

    def charge_refused(self, state: State, now_us: int, cost: int) -> LeasedState:
        """See ``Spec``."""
        base, ledger = self.settled(state, now_us)
        return LeasedState(self.spec.charge_refused(base, now_us, cost), ledger)

    def refund(self, state: State, now_us: int, cost: int, charged_us: int) -> LeasedState:
        """See ``Spec``. A bucket takes back no more than leaves room for what is out."""
        found: LeasedState = state
        base, ledger = self.settled(found, now_us)
        if base is None:
            return found
        after = self._capped(self.spec.refund(base, now_us, cost, charged_us), ledger, now_us)
        return found if after == base else LeasedState(after, ledger)

    def grant(self, state: State, now_us: int, tokens: int) -> tuple[LeasedState, int]:
        """See ``Spec``. Of a bucket, what is out is not given back."""
        base, ledger = self.settled(state, now_us)
        if base is None:
            return state, 0
        out = self._units(ledger) if isinstance(self.spec, TokenBucket) else 0
        after, given = self.spec.grant(self.spec.clamp(base, now_us) - out if out else base, now_us, tokens)
        return (LeasedState(after + out if out else after, ledger), given) if given else (state, 0)

    def carry(self, old: Spec, state: State, now_us: int, how: OnChange) -> LeasedState:
        """The state under these numbers. Leases stay as they are: a lower limit binds when those have ended."""
        before: Any = old
        base, ledger = before.settled(state, now_us)
        if base is not None:
            base = self.spec.carry(before.spec, base, now_us, how)
        return LeasedState(self._capped(base, ledger, now_us), ledger)

    def most_admitted(self, interval_us: int) -> int:
        """As ``spec``'s: leases add nothing."""
        return self.spec.most_admitted(interval_us)

    def state_bytes(self) -> int:
        """The counter's own, and about 400 bytes for each lease."""
        return self.spec.state_bytes() + 400 * LEASES_PER_COUNTER_MAX

    # ------------------------------------------------------------------ leases

    def turn(self, state: LeasedState | State | None, now_us: int, turn: Turn) -> tuple[State | None, LeaseGrant]:
        """(the state after a holder's step, the answer). ``state``: leased, exact (its own state alone) or None for missing.

        A counter of another incarnation has lost writes. So may one that is missing or has no ledger, unless the holder answers
        for it. Then all of it counts as used and granted, until leases that are not known any more have ended. A cautious holder
        leaves one without a ledger as it is.
        """
        ask = turn.ask
        found = self._found(state, turn)
        lost = found is None
        if lost and ask.cautious and not isinstance(state, LeasedState):
            level = self._level(None if state is None else self.spec.clamp(state, now_us), now_us)
            return state, LeaseGrant(0, 0, level, 0, False, True, now_us, turn.incarnation)
        base, ledger = self._lost(state, now_us, turn) if found is None else self._as_of(found, now_us)
        if base is not None:
            base = self.spec.clamp(base, now_us)
        for report in ask.reports:
            lease = ledger.of(turn.holder, report.serial)
            if lease is None:
                continue
            ledger = ledger.reported(lease, report.spent)
            if report.closed:
                base, ledger = self._closed(base, ledger, report.serial, now_us, turn.holder)
        known = ledger.of(turn.holder, ask.serial)
        granted = lasts_us = 0
        if known is not None:
            granted, lasts_us = known.granted, known.expires_us - now_us
        elif ask.serial and ask.want > 0:
            size = lease_size(self._level(base, now_us), ask.want, ask.share)
            if size == 0:
                ledger = ledger._replace(short_us=now_us)
            elif len(ledger.leases) < LEASES_PER_COUNTER_MAX:
                base, place_us, end_us = self._taken(base, now_us, size, turn.hold_us)
                ledger = ledger.granted(Lease(turn.holder, ask.serial, size, 0, end_us, place_us))
                granted, lasts_us = size, end_us - now_us
        out = ledger.out
        wanted = out > 0 and now_us - ledger.short_us < turn.hold_us
        level, leases = self._level(base, now_us), len(ledger.leases)
        answer = LeaseGrant(granted, lasts_us, level, out, wanted, lost, now_us, turn.incarnation, leases)
        if ask.retire and not ledger.leases:
            return base, answer
        return LeasedState(base, ledger._replace(touched_us=now_us)), answer

    def _found(self, state: LeasedState | State | None, turn: Turn) -> LeasedState | None:
        """The state with a ledger of this incarnation; None where it is to be taken for lost."""
        if isinstance(state, LeasedState):
            return state if state.ledger.incarnation == turn.incarnation else None
        if not turn.ask.answers_for(turn.incarnation):
            return None
        return LeasedState(state, Ledger(turn.incarnation))

    def _lost(self, state: LeasedState | State | None, now_us: int, turn: Turn) -> LeasedState:
        """All of it used as of now, and of a bucket all of it out as well."""
        spec, ledger = self.spec, Ledger(turn.incarnation)
        end_us = now_us + turn.hold_us
        if isinstance(spec, TokenBucket):
            ghost = Lease(LOST, 0, spec.capacity, 0, end_us, 0)
            return LeasedState(spec.charge_refused(None, now_us, spec.capacity), ledger.granted(ghost))
        base = state.base if isinstance(state, LeasedState) else state
        # A log counts it at the end of the leases that are not known any more.
        at_us = end_us if isinstance(spec, SlidingLog) else now_us
        return LeasedState(spec.charge_refused(base, at_us, spec.capacity), ledger)

    def _closed(
        self, base: State | None, ledger: Ledger, serial: int, now_us: int, holder: str
    ) -> tuple[State | None, Ledger]:
        """A lease closed by its holder: what it has not spent goes back."""
        lease = ledger.of(holder, serial)
        assert lease is not None
        ledger = ledger.without(lease)
        rest, spec = lease.granted - lease.spent, self.spec
        if rest and base is not None:
            if isinstance(spec, TokenBucket):
                base = self._capped(base - rest * spec.period_us, ledger, now_us)
            else:
                base = spec.refund(base, now_us, rest, lease.place_us)
        return base, ledger

    def _taken(self, base: State | None, now_us: int, size: int, hold_us: int) -> tuple[State, int, int]:
        """(the state less ``size``, which fits; where it counts; when its lease ends)."""
        spec, end_us = self.spec, now_us + hold_us
        if isinstance(spec, SlidingLog):
            log = spec.stamped(base, now_us, size, end_us)
            return log, log[-2], end_us
        after = spec.admit(base, now_us, size)
        assert after is not None
        if isinstance(spec, TokenBucket):
            return after, 0, end_us
        place_us, window_end_us = _window_of(spec, after)
        return after, place_us, min(end_us, window_end_us)

    def _level(self, base: State | None, now_us: int) -> int:
        return self.spec.verdict(base, now_us, 0, True).remaining

    def _units(self, ledger: Ledger) -> int:
        """What is out of a bucket in its units, at most a full drain: its limit may have been lowered."""
        spec = self.spec
        assert isinstance(spec, TokenBucket)
        return min(ledger.out, spec.capacity) * spec.period_us

    def _capped(self, base: State | None, ledger: Ledger, now_us: int) -> State | None:
        """The state of a bucket that has filled up only to what is not out; of another counter, itself."""
        spec = self.spec
        if not ledger.leases or not isinstance(spec, TokenBucket):
            return base
        least = now_us * spec.tokens + self._units(ledger)
        return least if base is None or base < least else base


def _window_of(spec: Spec, state: State) -> tuple[int, int]:
    """Start and end of the (sub-)window in which a state counts."""
    if isinstance(spec, FixedWindow):
        return state[0], spec.expires_us(state)
    assert isinstance(spec, SlidingWindow)
    if spec.sub_windows is None:
        return state[0], state[0] + spec.window_us
    length_us = -(-spec.window_us // spec.sub_windows)
    return state[0] * length_us, (state[0] + 1) * length_us
