"""The store's side of leases, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, OnChange, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import (
    LOST,
    LeaseAsk,
    Leased,
    LeasedState,
    LeaseGrant,
    LeaseReport,
    LeaseTerms,
    Turn,
    check_ask,
    lease_size,
)
from sluicegate.bounds import LEASE_HOLD_US_MAX, LEASED_KEEP_US, LEASES_PER_COUNTER_MAX

MS = 1_000
SECOND = 1_000_000
NOW = 1_700_000_000_000_000
TERMS = LeaseTerms(ttl_us=200 * MS)
HOLD = TERMS.hold_us
BUCKET = TokenBucket(100, 100, SECOND)


class Desk:
    """A counter with its leases, asked by holders at times in microseconds from ``NOW``."""

    def __init__(self, spec: Spec) -> None:
        self.leased = Leased(spec)
        self.state: Any = None
        self.life = "a" * 16

    def ask(self, at_us: int, holder: str = "holder-a", *reports: tuple[Any, ...], **wish: Any) -> LeaseGrant:
        ask = LeaseAsk([LeaseReport(*report) for report in reports], **{"settled": True, **wish})
        self.state, grant = self.leased.turn(self.state, NOW + at_us, Turn(holder, ask, HOLD, self.life))
        return grant

    def exact(self, at_us: int, cost: int) -> bool:
        after = self.leased.admit(self.state, NOW + at_us, cost)
        if after is not None:
            self.state = after
        return after is not None


def test_what_is_out_does_not_come_back_while_a_lease_lives() -> None:
    """A bucket with 60 of 100 out fills up to 40, however much time passes before its lease ends."""
    desk = Desk(BUCKET)
    assert desk.ask(0, serial=1, want=60).granted == 60
    assert desk.exact(0, 40)
    assert not desk.exact(HOLD - 1, 41)
    assert desk.exact(HOLD - 1, 20)


def test_a_lease_is_written_off_after_time_has_passed_under_it() -> None:
    """The first step after a lease ended gives nothing of the time in which it lived, and credits nothing."""
    desk = Desk(TokenBucket(60, 600, SECOND))
    desk.ask(0, serial=1, want=60)
    assert not desk.exact(HOLD, 1)
    desk.ask(HOLD)
    assert desk.state.ledger.leases == ()
    assert not desk.exact(HOLD + MS, 1)
    assert desk.exact(HOLD + 10 * MS, 5)


def test_a_report_does_not_free_the_time_before_it() -> None:
    """Tokens reported at the end of a lease come back from the report on: before, the bucket filled up to 40."""
    desk = Desk(TokenBucket(100, 1_000, SECOND))
    desk.ask(0, serial=1, want=60)
    assert desk.exact(0, 40)
    assert desk.ask(HOLD - 1, "holder-a", (1, 60)).level == 40
    assert desk.ask(HOLD - 1 + 10 * MS).level == 50


def test_reports_are_cumulative_and_may_come_twice_and_late() -> None:
    """A report twice or of less than is known changes nothing; one of more than was granted counts as all."""
    desk = Desk(BUCKET)
    desk.ask(0, serial=1, want=60)
    assert desk.ask(0, "holder-a", (1, 20)).out == 40
    assert desk.ask(0, "holder-a", (1, 20)).out == 40
    assert desk.ask(0, "holder-a", (1, 5)).out == 40
    assert desk.ask(0, "holder-a", (1, 999)).out == 0


def test_a_closed_lease_gives_back_what_was_not_spent_once() -> None:
    """A return twice, by somebody else, or after its lease was closed, does nothing."""
    desk = Desk(BUCKET)
    desk.ask(0, serial=1, want=60)
    assert desk.ask(0, "holder-b", (1, 0, True)).level == 40
    assert desk.ask(0, "holder-a", (1, 20, True)).level == 80
    assert desk.ask(0, "holder-a", (1, 20, True)).level == 80
    assert desk.ask(0, "holder-a", (7, 3, True)).out == 0


def test_a_wish_that_comes_twice_is_granted_once() -> None:
    """The same serial again gives the same lease, and what is left of its time."""
    desk = Desk(BUCKET)
    first = desk.ask(0, serial=1, want=60)
    again = desk.ask(50 * MS, serial=1, want=60)
    assert (first.granted, first.lasts_us) == (60, HOLD)
    assert (again.granted, again.lasts_us, again.out) == (60, HOLD - 50 * MS, 60)


@pytest.mark.parametrize(
    ("level", "want", "share", "size"),
    [(100, 30, 1, 30), (100, 300, 4, 25), (3, 300, 8, 1), (0, 10, 1, 0), (100, 0, 1, 0), (1, 1, 1, 1)],
)
def test_the_size_of_a_lease(level: int, want: int, share: int, size: int) -> None:
    """What is wanted, at most a share of what is left, at least one token where there is one."""
    assert lease_size(level, want, share) == size


def test_idle_leases_are_wanted_back_after_somebody_was_refused() -> None:
    """Holders are told for one hold after a wish got nothing while tokens were out."""
    desk = Desk(BUCKET)
    assert not desk.ask(0, serial=1, want=100).wanted
    assert desk.ask(0, "holder-b", serial=1, want=5).wanted
    assert desk.ask(MS, "holder-a").wanted
    assert not desk.ask(MS, "holder-a", (1, 0, True)).wanted


def test_a_missing_counter_is_taken_for_lost_unless_the_holder_answers_for_it() -> None:
    """Lost: all of it is used and out until older leases must have ended, and it starts from nothing then."""
    desk = Desk(BUCKET)
    grant = desk.ask(0, serial=1, want=10, settled=False)
    assert (grant.lost, grant.granted, grant.level, grant.out) == (True, 0, 0, 100)
    assert desk.state.ledger.leases[0].holder == LOST
    assert desk.ask(HOLD - 1, serial=2, want=10, settled=False).granted == 0
    grant = desk.ask(HOLD, serial=3, want=10, settled=False)
    assert (grant.lost, grant.out, grant.level) == (False, 0, 0)
    assert desk.ask(HOLD + 50 * MS, serial=4, want=10, settled=False).granted == 5


def test_an_exact_counter_is_leased_as_it_stands_or_taken_for_lost() -> None:
    """Without a ledger nobody knows whether leases were lost: only a holder who does goes on with its level."""
    state = BUCKET.admit(None, NOW, 30)
    turn = Turn("holder-a", LeaseAsk(serial=1, want=10, settled=True), HOLD, "a" * 16)
    assert Leased(BUCKET).turn(state, NOW, turn)[1].level == 60
    turn = turn._replace(ask=LeaseAsk(serial=1, want=10))
    assert Leased(BUCKET).turn(state, NOW, turn)[1].level == 0


def test_a_cautious_holder_leaves_a_counter_without_leases_as_it_is() -> None:
    """It is told that the counter may be lost, and what is left of it; exact charges go on."""
    spec = TokenBucket(100, 1, SECOND)
    for state, level in ((None, 100), (spec.admit(None, NOW, 30), 70)):
        ask = LeaseAsk(serial=1, want=10, cautious=True)
        after, grant = Leased(spec).turn(state, NOW, Turn("holder-a", ask, HOLD, "a" * 16))
        assert after == state
        assert (grant.lost, grant.granted, grant.level, grant.out, grant.leases) == (True, 0, level, 0, 0)


def test_a_cautious_holder_uses_a_counter_that_is_leased() -> None:
    """Where others lease it in this life of the server, it gets its part at once; in another life it is lost all the same."""
    spec = TokenBucket(100, 1, SECOND)
    state, _ = Leased(spec).turn(None, NOW, Turn("holder-a", LeaseAsk(serial=1, want=10, settled=True), HOLD, "a" * 16))
    ask = LeaseAsk(serial=1, want=10, cautious=True)
    _, grant = Leased(spec).turn(state, NOW, Turn("holder-b", ask, HOLD, "a" * 16))
    assert (grant.lost, grant.granted, grant.leases) == (False, 10, 2)
    _, grant = Leased(spec).turn(state, NOW, Turn("holder-b", ask, HOLD, "b" * 16))
    assert (grant.lost, grant.granted, grant.level) == (True, 0, 0)


def test_settled_is_believed_of_the_life_it_names() -> None:
    """A holder that answers for one life of the server says nothing of another."""
    ask = LeaseAsk(serial=1, want=10, settled=True, life="a" * 16)
    for life, granted in (("a" * 16, 10), ("b" * 16, 0)):
        _, grant = Leased(TokenBucket(100, 1, SECOND)).turn(None, NOW, Turn("holder-a", ask, HOLD, life))
        assert (grant.granted, grant.lost) == (granted, granted == 0)


def test_another_life_of_the_server_is_a_loss_whatever_the_holder_says() -> None:
    """A counter of another incarnation forgets its leases and grants nothing for a hold."""
    desk = Desk(BUCKET)
    desk.ask(0, serial=1, want=10)
    desk.life = "b" * 16
    grant = desk.ask(0, "holder-a", (1, 3), serial=2, want=10)
    assert (grant.lost, grant.granted, grant.out) == (True, 0, 100)


@pytest.mark.parametrize(
    "spec",
    [
        FixedWindow(100, SECOND),
        SlidingWindow(100, SECOND),
        SlidingWindow(100, SECOND, sub_windows=2),
        SlidingLog(100, SECOND),
    ],
    ids=["fixed", "estimate", "strict", "log"],
)
def test_windows_grant_by_charging(spec: Spec) -> None:
    """A grant counts at once, a return is taken out again, a write-off is not; a lost window is full."""
    desk = Desk(spec)
    assert desk.ask(0, serial=1, want=60).level == 40
    assert desk.exact(0, 30)
    assert desk.ask(0, "holder-a", (1, 50, True)).level == 20
    desk.ask(0, serial=2, want=20)
    assert desk.ask(HOLD, "holder-a").out == 0
    assert not desk.exact(HOLD, 1)
    lost = Desk(spec)
    assert lost.ask(0, settled=False).level == 0


@pytest.mark.parametrize(
    ("spec", "lasts_us"),
    [
        (FixedWindow(100, SECOND), 100 * MS),
        (SlidingWindow(100, SECOND), 100 * MS),
        (SlidingWindow(100, SECOND, sub_windows=2), 100 * MS),
        (SlidingLog(100, SECOND), HOLD),
        (BUCKET, HOLD),
    ],
    ids=["fixed", "estimate", "strict", "log", "bucket"],
)
def test_a_lease_dies_with_its_window(spec: Spec, lasts_us: int) -> None:
    """A lease granted 100 ms before the end of its window or sub-window lasts for 100 ms."""
    assert Desk(spec).ask(900 * MS, serial=1, want=5).lasts_us == lasts_us


def test_a_log_counts_a_grant_at_the_end_of_its_lease() -> None:
    """The tokens leave a window of one second one second after the lease has ended."""
    desk = Desk(SlidingLog(100, SECOND))
    desk.ask(0, serial=1, want=100)
    assert not desk.exact(HOLD + SECOND - 1, 1)
    assert desk.exact(HOLD + SECOND, 100)


def test_a_lowered_limit_binds_when_older_leases_have_ended() -> None:
    """After 100 became 20 with 60 out, nothing is granted or charged until they are back or have ended."""
    desk = Desk(BUCKET)
    desk.ask(0, serial=1, want=60)
    low = Leased(TokenBucket(20, 100, SECOND))
    desk.state, desk.leased = low.carry(desk.leased, desk.state, NOW, OnChange.KEEP), low
    assert not desk.exact(HOLD - 1, 1)
    grant = desk.ask(HOLD - 1, "holder-a", (1, 10, True))
    assert (grant.level, grant.out) == (20, 0)


@pytest.mark.parametrize("how", list(OnChange))
def test_a_raised_limit_helps_at_once_and_leaves_what_is_out_used(how: OnChange) -> None:
    """After 100 became 200 with 60 out, at least 60 stay used, whatever becomes of the rest."""
    desk = Desk(BUCKET)
    desk.ask(0, serial=1, want=60)
    high = Leased(TokenBucket(200, 100, SECOND))
    desk.state, desk.leased = high.carry(desk.leased, desk.state, NOW, how), high
    assert desk.ask(0).level == (80 if how is OnChange.SCALE else 140)


def test_refunds_and_grants_leave_room_for_what_is_out() -> None:
    """An operator gives back what was charged, never what is out."""
    desk = Desk(BUCKET)
    desk.ask(0, serial=1, want=60)
    assert desk.exact(0, 30)
    state, given = desk.leased.grant(desk.state, NOW, 100)
    assert given == 30
    desk.state = state
    assert desk.ask(0).level == 40
    assert desk.leased.refund(desk.state, NOW, 30, NOW) is desk.state


def test_a_clock_that_is_set_back_does_not_keep_leases_for_ever() -> None:
    """A lease that would end later than any can is dated to end one longest hold from now."""
    desk = Desk(BUCKET)
    desk.ask(0, serial=1, want=60)
    desk.ask(-3_600 * SECOND)
    assert desk.state.ledger.leases[0].expires_us == NOW - 3_600 * SECOND + LEASE_HOLD_US_MAX
    desk.ask(-3_600 * SECOND + LEASE_HOLD_US_MAX)
    assert desk.state.ledger.leases == ()


def test_a_retired_counter_is_an_exact_one_when_nothing_is_out() -> None:
    """The representation changes only when no lease is left."""
    desk = Desk(BUCKET)
    desk.ask(0, serial=1, want=60)
    desk.ask(0, retire=True)
    assert isinstance(desk.state, LeasedState)
    desk.ask(0, "holder-a", (1, 60, True), retire=True)
    assert desk.state == BUCKET.admit(None, NOW, 60)


def test_the_number_of_leases_is_bounded() -> None:
    """A counter with all leases it can have grants no more."""
    desk = Desk(TokenBucket(10_000, 100, SECOND))
    for serial in range(1, LEASES_PER_COUNTER_MAX + 1):
        assert desk.ask(0, serial=serial, want=1).granted == 1
    assert desk.ask(0, serial=LEASES_PER_COUNTER_MAX + 1, want=1).granted == 0


def test_a_leased_counter_is_kept_for_a_day() -> None:
    """What is gone has to be taken for lost, so it stays for a while after its last use."""
    desk = Desk(BUCKET)
    desk.ask(0, serial=1, want=10)
    assert desk.leased.expires_us(desk.state) >= NOW + LEASED_KEEP_US


@pytest.mark.parametrize("spec", [LeakyBucket(10, 1, SECOND), Ban()])
def test_what_is_never_leased(spec: Spec) -> None:
    """A leaky bucket and a ban have no leases."""
    with pytest.raises(ValueError, match="never leased"):
        Leased(spec)


def test_a_holder_ends_before_the_store_by_the_worst_clocks() -> None:
    """With both clocks as wrong as they may be, the holder's end comes first, of whole leases and of what a window leaves."""
    for lasts_us in (HOLD, 100 * MS, 1, 12_345):
        holder_real = TERMS.usable_us(lasts_us) * 1_000_000 / (1_000_000 - TERMS.drift_ppm)
        store_real = lasts_us * 1_000_000 / (1_000_000 + TERMS.drift_ppm)
        assert holder_real <= store_real


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("ttl_us", lambda: LeaseTerms(ttl_us=1)),
        ("drift_ppm", lambda: LeaseTerms(drift_ppm=0)),
        ("serial", lambda: check_ask(LeaseAsk(serial=-1))),
        ("want", lambda: check_ask(LeaseAsk(want=-1))),
        ("share", lambda: check_ask(LeaseAsk(share=0))),
        ("spent", lambda: check_ask(LeaseAsk([LeaseReport(1, -1)]))),
        ("reports", lambda: check_ask(LeaseAsk([LeaseReport(1, 1)] * 9))),
    ],
)
def test_a_number_out_of_range_is_named(field: str, make: Any) -> None:
    """The error names the field."""
    with pytest.raises(ValueError, match=field):
        make()
