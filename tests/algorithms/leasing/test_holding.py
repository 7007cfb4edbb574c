"""The holder's side of leases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms.leasing import Holding, LeaseAsk, LeaseGrant, LeaseReport, LeaseTerms
from sluicegate.bounds import LEASE_REPORTS_MAX

MS = 1_000
TERMS = LeaseTerms(ttl_us=200 * MS)


def grant(tokens: int, lasts_us: int = TERMS.hold_us, *, wanted: bool = False) -> LeaseGrant:
    """An answer of a store."""
    return LeaseGrant(tokens, lasts_us, 0, tokens, wanted, False, 0, "a" * 16)


def held(tokens: int, sent_us: int = 0, came_us: int = 0) -> tuple[Holding, LeaseAsk]:
    """A holding with one lease."""
    holding = Holding(TERMS)
    ask = holding.ask(sent_us, want=tokens)
    assert holding.answered(ask, grant(tokens), came_us) == tokens
    return holding, ask


def test_a_lease_is_counted_from_the_send() -> None:
    """It ends ttl * (1 - drift) after the wish was sent, however late the answer came."""
    holding, _ = held(10, came_us=100 * MS)
    assert holding.left(198 * MS - 1) == 10
    assert holding.left(198 * MS) == 0
    assert holding.spend(1, 198 * MS) is None


def test_an_answer_that_comes_too_late_adds_nothing() -> None:
    """What has ended on its way is not held."""
    holding = Holding(TERMS)
    ask = holding.ask(0, want=5)
    assert holding.answered(ask, grant(5), 198 * MS) == 0


def test_an_answer_adds_once() -> None:
    """The same answer again, and one to a wish that was given up, add nothing."""
    holding, ask = held(10)
    assert holding.answered(ask, grant(10), 0) == 0
    given_up = holding.ask(0, want=5)
    holding.failed(given_up)
    assert holding.answered(given_up, grant(5), 0) == 0
    assert holding.left(0) == 10


def test_a_provisional_spend_is_not_reported() -> None:
    """What a request has taken is reported when it was concluded, and can be given back before."""
    holding, _ = held(10)
    first, second = holding.spend(3, 0), holding.spend(2, 0)
    assert first is not None
    assert second is not None
    assert holding.ask(0).reports == (LeaseReport(1, 0),)
    assert holding.conclude(first, 0)
    holding.give_back(second)
    assert holding.ask(0).reports == (LeaseReport(1, 3),)
    assert holding.left(0) == 7


def test_a_request_does_not_pass_by_a_lease_that_has_ended() -> None:
    """A spend that is concluded after the end says no."""
    holding, _ = held(10)
    spend = holding.spend(3, 0)
    assert spend is not None
    assert not holding.conclude(spend, 198 * MS)


def test_tokens_of_an_ended_lease_are_not_given_back() -> None:
    """A give-back after the end adds nothing to what can be spent."""
    holding, _ = held(10)
    spend = holding.spend(3, 0)
    assert spend is not None
    holding.ask(198 * MS)
    holding.give_back(spend)
    assert holding.left(198 * MS) == 0


def test_the_own_share_is_lowered_before_a_return_is_sent() -> None:
    """From the moment a closing report is made nothing of the lease is spent, and it is repeated until it is answered."""
    holding, _ = held(10)
    ask = holding.ask(0, close=True)
    assert ask.reports == (LeaseReport(1, 0, True),)
    assert holding.left(0) == 0
    assert holding.spend(1, 0) is None
    assert holding.ask(0).reports == ask.reports
    holding.answered(ask, grant(0), 0)
    assert holding.ask(0).reports == ()


def test_a_lease_with_provisional_tokens_is_not_closed() -> None:
    """It is closed by the first ask after they were concluded."""
    holding, _ = held(10)
    spend = holding.spend(4, 0)
    assert spend is not None
    assert holding.ask(0, close=True).reports == (LeaseReport(1, 0),)
    holding.conclude(spend, 0)
    assert holding.ask(0, close=True).reports == (LeaseReport(1, 4, True),)


def test_a_lease_that_is_spent_is_closed_by_itself() -> None:
    """Nothing of it is left, and the store need not keep it."""
    holding, _ = held(4)
    spend = holding.spend(4, 0)
    assert spend is not None
    holding.conclude(spend, 0)
    assert holding.ask(0).reports == (LeaseReport(1, 4, True),)


def test_a_cost_is_taken_of_several_leases_and_the_one_that_ends_first() -> None:
    """Two leases of 3 and 4 serve a cost of 5, and 8 not."""
    holding, _ = held(3)
    later = holding.ask(50 * MS, want=4)
    holding.answered(later, grant(4), 50 * MS)
    assert holding.spend(8, 60 * MS) is None
    spend = holding.spend(5, 60 * MS)
    assert spend is not None
    holding.conclude(spend, 60 * MS)
    assert holding.ask(60 * MS).reports == (LeaseReport(1, 3, True), LeaseReport(2, 2))


def test_the_number_of_leases_held_is_bounded() -> None:
    """A holder with all leases it may have wishes for no more."""
    holding = Holding(TERMS)
    for _ in range(LEASE_REPORTS_MAX):
        holding.answered(holding.ask(0, want=1), grant(1), 0)
    ask = holding.ask(0, want=1)
    assert (ask.serial, ask.want, len(ask.reports)) == (0, 0, LEASE_REPORTS_MAX)


def test_a_dropped_holding_spends_nothing_more() -> None:
    """What was held and what is on its way is gone, and provisional tokens with it."""
    holding, _ = held(10)
    spend = holding.spend(3, 0)
    waiting = holding.ask(0, want=5)
    holding.drop()
    assert holding.left(0) == 0
    assert spend is not None
    assert not holding.conclude(spend, 0)
    assert holding.answered(waiting, grant(5), 0) == 0


def test_a_holder_hears_that_leases_are_wanted() -> None:
    """The last answer says it."""
    holding, _ = held(10)
    holding.answered(holding.ask(0), grant(0, wanted=True), 0)
    assert holding.wanted


def test_what_ended_with_tokens_left_is_reported_once_more() -> None:
    """While the store still waits for it the rest goes back, provisional tokens too, which do not pass any more."""
    holding, _ = held(10)
    first, second = holding.spend(3, 0), holding.spend(2, 0)
    assert first is not None
    assert second is not None
    assert holding.conclude(first, 0)
    ask = holding.ask(198 * MS)
    assert ask.reports == (LeaseReport(1, 3, closed=True),)
    assert not holding.conclude(second, 0)
    holding.answered(ask, grant(0), 199 * MS)
    assert holding.count == 0
    assert holding.used == 3 + 2
    again, _ = held(10)
    assert again.ask(202 * MS).reports == ()


def test_little_left_is_told_once() -> None:
    """``low`` is set by whoever takes the token that leaves no more than was said, and not again before it is asked for again."""
    holding, _ = held(10)
    holding.warn_below(3, 0)
    assert [holding.take(1, 0) and holding.low for _ in range(8)] == [False] * 6 + [True] * 2
    holding.warn_below(0, 0)
    assert [holding.take(1, 0) for _ in range(3)] == [True, True, False]
    assert not holding.low


def test_a_frozen_holding_spends_nothing_and_lets_pass_what_was_taken() -> None:
    """What is provisional may be kept; everything else goes back, when nothing is provisional any more."""
    holding, _ = held(10)
    spend = holding.spend(4, 0)
    assert spend is not None
    holding.freeze()
    assert not holding.take(1, 0)
    assert holding.ask(0).reports == (LeaseReport(1, 0),)
    assert holding.conclude(spend, 0)
    assert holding.ask(0).reports == (LeaseReport(1, 4, closed=True),)


def test_surplus_is_closed_from_the_end() -> None:
    """Whole leases of which no more than the surplus is left, those that end last first."""
    holding = Holding(TERMS)
    for tokens in (10, 5, 3):
        assert holding.answered(holding.ask(0, want=tokens), grant(tokens), 0) == tokens
    holding.close_surplus(8)
    assert holding.left(0) == 10
    assert [report.closed for report in holding.ask(0).reports] == [False, True, True]


def test_what_is_not_confirmed_is_not_spent_and_goes_back() -> None:
    """A grant that no replica has adds nothing, and the next ask closes it unspent."""
    holding = Holding(TERMS)
    ask = holding.ask(0, want=7)
    assert holding.answered(ask, grant(7)._replace(confirmed=False), 0) == 0
    assert holding.left(0) == 0
    assert not holding.take(1, 0)
    assert holding.ask(0).reports == (LeaseReport(1, 0, closed=True),)


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 9)),
        st.tuples(st.just("wait"), st.sampled_from((0, 1, 50 * MS, 150 * MS, 198 * MS))),
        st.tuples(st.just("grant"), st.integers(1, 20)),
        st.tuples(st.just("close"), st.integers(0, 1)),
        st.tuples(st.just("warn"), st.integers(0, 12)),
    ),
    max_size=40,
)


@given(steps=_steps)
def test_take_is_spend_and_conclude_in_one(steps: list[tuple[str, int]]) -> None:
    """They give the same answers and leave the same, whatever was warned of, and ``low`` is said whenever less is left than was said."""
    one, other, now_us, low_at = Holding(TERMS), Holding(TERMS), 0, 0
    for kind, number in steps:
        if kind == "take":
            spend = other.spend(number, now_us)
            passed = spend is not None and other.conclude(spend, now_us)
            assert one.take(number, now_us) is passed
            if passed and one.left(now_us) <= low_at and one.left(now_us):
                assert one.low
        elif kind == "wait":
            now_us += number
        elif kind == "warn":
            low_at = number
            one.warn_below(number, now_us)
        else:
            for holding in (one, other):
                ask = holding.ask(now_us, want=number if kind == "grant" else 0, close=kind == "close" and number == 1)
                holding.answered(ask, grant(number if ask.serial else 0), now_us)
        assert one.left(now_us) == other.left(now_us)
        assert one.used == other.used
