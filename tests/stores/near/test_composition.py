"""Requests of several charges: what is leased is spent here, the rest is one call, and what does not pass costs nothing."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import FixedWindow, Outcome, Precision, SlidingWindow, TokenBucket
from sluicegate.algorithms.verdict import NOT_ASKED, LocalVerdict
from sluicegate.clock import US_PER_S
from sluicegate.errors import PartlyReached, StoreError
from sluicegate.stores.near import NearSettings

DAY = TokenBucket(1_000_000, 1_000_000, 86_400 * US_PER_S)


@pytest.fixture
def shared(counter_of):
    """A leased counter of everybody."""
    return counter_of("shared", DAY, Precision.LEASED)


@pytest.fixture
def own(counter_of):
    """The exact counter of a client: three tokens, one in 20 seconds."""
    return counter_of("own", TokenBucket(3, 3, 60 * US_PER_S))


def held(near, counter) -> int:
    """Tokens of everybody's counter that a process may still spend."""
    leased = near.front.leases.find(counter, "*", near.now_us())
    return leased.left(near.now_us())


def test_a_request_that_passes_asks_for_the_clients_counter_only(bench, shared, own) -> None:
    """One call for the client's counter, none for the leased one, and both are charged."""
    near = bench.near()
    bench.supply(near, shared)
    bench.model.asked.clear()
    before = held(near, shared)
    answer = near.decide_one([(shared, "*", 1), (own, "a", 1)])
    assert answer.admitted
    assert bench.model.asked == [[(own, "a", 1)]]
    assert held(near, shared) == before - 1
    assert [receipt.counter for receipt in answer.receipts()] == [shared, own]
    assert [type(verdict) for verdict in answer.verdicts()] == [LocalVerdict, type(NOT_ASKED)]
    assert answer.verdicts()[1].remaining == 2
    assert answer.asked


def test_a_refusal_by_the_store_gives_the_tokens_back(bench, shared, own) -> None:
    """Where the client's counter refuses, the leased tokens are there again and nothing is charged."""
    near = bench.near()
    bench.supply(near, shared)
    for _ in range(3):
        assert near.decide_one([(own, "a", 1)]).admitted
    near.forget()
    before = held(near, shared)
    answer = near.decide_one([(shared, "*", 2), (own, "a", 1)])
    assert not answer.admitted
    assert held(near, shared) == before
    assert answer.receipts() == ()
    assert answer.refused() == [(own, "a", 1)]
    assert [verdict.outcome for verdict in answer.verdicts()] == [Outcome.ALLOWED, Outcome.DENIED]


def test_a_remembered_refusal_asks_nobody(bench, shared, own) -> None:
    """A client that was refused is refused here until its time, at no call and no token, and the rule is its own."""
    near = bench.near()
    bench.supply(near, shared)
    for _ in range(4):
        near.decide_one([(own, "a", 1)])
    bench.model.asked.clear()
    before = held(near, shared)
    answer = near.decide_one([(shared, "*", 1), (own, "a", 1)])
    assert not answer.admitted
    assert not answer.asked
    assert bench.model.asked == []
    assert held(near, shared) == before
    assert answer.verdicts()[0] == NOT_ASKED
    assert answer.verdicts()[1].retry_after_us == 20 * US_PER_S
    assert answer.refused() == [(own, "a", 1)]
    assert near.decide_one([(shared, "*", 1), (own, "b", 1)]).admitted


@pytest.mark.parametrize(
    "spec", [TokenBucket(2, 2, 60 * US_PER_S), FixedWindow(2, 60 * US_PER_S), SlidingWindow(2, 60 * US_PER_S)]
)
def test_who_takes_the_last_token_is_known_to_be_refused_next(bench, counter_of, spec) -> None:
    """The answer that leaves nothing says when the next charge passes: until then the store is not asked."""
    near = bench.near()
    own = counter_of("own", spec)
    assert all(near.decide_one([(own, "a", 1)]).admitted for _ in range(2))
    bench.model.asked.clear()
    answer = near.decide_one([(own, "a", 1)])
    assert not answer.admitted
    assert bench.model.asked == []
    oracle = bench.model.memory.decide_one([(own, "a", 1)], peek=True).verdicts()[0]
    assert answer.verdicts()[0].retry_after_us == oracle.retry_after_us


def test_a_counter_that_is_hot_by_refusals_is_leased(bench, counter_of) -> None:
    """A client that is refused here all the time is hot too: its tokens come by leases, not one by one."""
    near = bench.near()
    busy = counter_of("busy", TokenBucket(1_000, 1_000, 60 * US_PER_S), Precision.AUTO)
    for _ in range(400):
        for _ in range(20):
            near.decide_one([(busy, "a", 1)])
        bench.pass_us(10_000)
    assert near.warmth.promoted == 1
    assert near.front.leases.find(busy, "a", near.now_us()) is not None
    asked = near.stats.asked
    for _ in range(100):
        for _ in range(20):
            near.decide_one([(busy, "a", 1)])
        bench.pass_us(10_000)
    assert near.stats.asked - asked < 20


def test_the_longest_known_wait_counts(bench, counter_of) -> None:
    """Of two counters that are known to refuse both are told, so that the wait is the longer one."""
    near = bench.near()
    short, long = (counter_of(name, TokenBucket(1, 1, s * US_PER_S)) for name, s in (("short", 5), ("long", 50)))
    for counter in (short, long):
        for _ in range(2):
            near.decide_one([(counter, "a", 1)])
    answer = near.decide_one([(short, "a", 1), (long, "a", 1)])
    assert [verdict.retry_after_us for verdict in answer.verdicts()] == [5 * US_PER_S, 50 * US_PER_S]


def test_a_cost_that_never_fits_asks_nobody(bench, shared, own) -> None:
    """A cost above a limit is refused for good without a call, in a request of one charge and of several."""
    near = bench.near()
    for request in ([(own, "a", 4)], [(shared, "*", 1), (own, "a", 4)]):
        answer = near.decide_one(request)
        assert not answer.admitted
        assert answer.verdicts()[-1].outcome is Outcome.NEVER_FITS
        assert answer.verdicts()[-1].retry_after_us is None
    assert bench.model.asked == []
    assert near.stats.never == 2


def test_all_leased_asks_nobody(bench, counter_of, shared) -> None:
    """A request whose charges are all leased is decided here, with receipts for each."""
    near = bench.near()
    other = counter_of("other", DAY, Precision.LEASED)
    for counter in (shared, other):
        bench.supply(near, counter)
    bench.model.asked.clear()
    answer = near.decide_one([(shared, "*", 1), (other, "*", 2)])
    assert (answer.admitted, answer.unanimous, answer.asked) == (True, True, False)
    assert bench.model.asked == []
    assert [(receipt.counter, receipt.cost) for receipt in answer.receipts()] == [(shared, 1), (other, 2)]


def test_a_counter_that_counts_refusals_is_the_stores(bench, counter_of) -> None:
    """``denied_counts`` is neither leased nor remembered: each refusal reaches the store and is charged there."""
    near = bench.near()
    strict = counter_of("strict", TokenBucket(1, 1, 60 * US_PER_S), Precision.LEASED, denied_counts=True)
    for _ in range(4):
        near.decide_one([(strict, "a", 1)])
    assert len(bench.model.asked) == 4


def test_a_shadow_that_is_known_to_refuse_is_left_out(bench, counter_of, own) -> None:
    """The request passes, the shadow is reported as refused, and the store is asked about the others only."""
    near = bench.near()
    shadow = counter_of("shadow", TokenBucket(1, 1, 60 * US_PER_S), shadow=True)
    for _ in range(2):
        near.decide_one([(shadow, "a", 1)])
    bench.model.asked.clear()
    answer = near.decide_one([(shadow, "a", 1), (own, "a", 1)])
    assert (answer.admitted, answer.unanimous) == (True, False)
    assert bench.model.asked == [[(own, "a", 1)]]
    assert answer.refused() == [(shadow, "a", 1)]
    assert [receipt.counter for receipt in answer.receipts()] == [own]
    alone = near.decide_one([(shadow, "a", 1)])
    assert (alone.admitted, alone.unanimous, alone.receipts()) == (True, False, ())


def test_a_shadow_is_leased_as_others_are(bench, counter_of, own) -> None:
    """Tokens of a shadow's lease go back where an enforced counter refuses."""
    near = bench.near()
    shadow = counter_of("shadow", DAY, Precision.LEASED, shadow=True)
    bench.supply(near, shadow)
    for _ in range(3):
        near.decide_one([(own, "a", 1)])
    before = held(near, shadow)
    assert not near.decide_one([(shadow, "*", 1), (own, "a", 1)]).admitted
    assert held(near, shadow) == before


def test_nothing_is_remembered_where_that_is_switched_off(bench, own) -> None:
    """With ``denials_max`` 0 every refusal is the store's."""
    near = bench.near(NearSettings(denials_max=0))
    for _ in range(6):
        near.decide_one([(own, "a", 1)])
    assert len(bench.model.asked) == 6


# ---------------------------------------------------------------------- a lease that ends while the store is asked


def test_a_lease_that_ends_meanwhile_is_replaced_by_a_charge(bench, shared, own) -> None:
    """The store is then asked for the leased charge too, and the request passes by what it says."""
    near = bench.near()
    bench.supply(near, shared)
    bench.model.asked.clear()
    bench.model.meanwhile = lambda: bench.clock.advance(2 * US_PER_S)
    answer = near.decide_one([(shared, "*", 1), (own, "a", 1)])
    assert answer.admitted
    assert bench.model.asked == [[(own, "a", 1)], [(shared, "*", 1)]]
    assert near.stats.lapsed == 1
    assert len(answer.receipts()) == 2


def test_what_was_charged_goes_back_where_that_is_refused(bench, counter_of, own) -> None:
    """Where the store then refuses the leased charge, the client's charge is given back by receipt."""
    near = bench.near()
    scarce = counter_of("scarce", TokenBucket(1_000, 1, 86_400 * US_PER_S), Precision.LEASED)
    bench.supply(near, scarce, tokens=3)

    def drain() -> None:
        bench.model.meanwhile = lambda: None
        bench.clock.advance(2 * US_PER_S)
        left = bench.model.memory.decide_one([(scarce, "*", 0)], peek=True).verdicts()[0].remaining
        bench.model.memory.decide_one([(scarce, "*", left)])

    bench.model.meanwhile = drain
    answer = near.decide_one([(scarce, "*", 1), (own, "a", 1)])
    assert not answer.admitted
    assert answer.receipts() == ()
    assert answer.refused() == [(scarce, "*", 1)]
    assert [receipt.counter for receipt in bench.model.refunded] == [own]
    assert near.decide_one([(own, "a", 0)], peek=True).verdicts()[0].remaining == 3


# ---------------------------------------------------------------------- a store that fails


def test_a_store_that_fails_leaves_the_leased_part_standing(bench, shared, own) -> None:
    """The failure policies then decide the client's rule only: the leased charge passed and has a receipt."""
    near = bench.near()
    bench.supply(near, shared)
    bench.model.flaky.down = True
    with pytest.raises(PartlyReached) as raised:
        near.decide_one([(shared, "*", 1), (own, "a", 1)])
    first, second = raised.value.verdicts
    assert first.outcome is Outcome.ALLOWED
    assert second is None
    assert [receipt.counter for receipt in raised.value.receipts] == [shared]


def test_leases_go_on_while_the_store_is_away(bench, shared) -> None:
    """What is held is spent until it ends; then the error of the store goes up."""
    near = bench.near()
    bench.supply(near, shared)
    bench.model.flaky.down = True
    assert near.decide_one([(shared, "*", 1)]).admitted
    bench.pass_us(2 * US_PER_S)
    with pytest.raises(StoreError):
        near.decide_one([(shared, "*", 1)])


def test_an_interrupted_call_puts_the_tokens_back(bench, shared, own) -> None:
    """Where the caller is interrupted while the store is asked, the request does not pass and its tokens are there again."""
    near = bench.near()
    bench.supply(near, shared)
    before = held(near, shared)

    def interrupt() -> None:
        raise KeyboardInterrupt

    bench.model.meanwhile = interrupt
    with pytest.raises(KeyboardInterrupt):
        near.decide_one([(shared, "*", 1), (own, "a", 1)])
    with pytest.raises(KeyboardInterrupt):
        near.decide([[(shared, "*", 1), (own, "a", 1)]])
    assert held(near, shared) == before


# ---------------------------------------------------------------------- what is given back, and news of it


@pytest.mark.parametrize("how", ["refund", "grant", "reset", "forget"])
def test_whatever_gives_something_back_ends_a_remembered_refusal(bench, own, how: str) -> None:
    """After a refund, a grant, a reset or ``forget`` the store is asked again at once."""
    near = bench.near()
    made = [near.decide_one([(own, "a", 1)]) for _ in range(3)]
    assert not near.decide_one([(own, "a", 1)]).admitted
    bench.model.asked.clear()
    if how == "refund":
        near.refund(made[0].receipts())
    elif how == "grant":
        near.grant([(own, "a", 1)])
    elif how == "reset":
        near.reset([(own, "a")])
    else:
        near.forget()
    assert near.decide_one([(own, "a", 1)]).admitted is (how != "forget")
    assert len(bench.model.asked) == 1


def test_a_receipt_of_a_leased_charge_gives_it_back(bench, counter_of) -> None:
    """A refund of what was spent of a lease raises the counter in the store by as much."""
    near = bench.near()
    shared = counter_of("slow", TokenBucket(10_000, 1, 86_400 * US_PER_S), Precision.LEASED)
    bench.supply(near, shared)
    answer = near.decide_one([(shared, "*", 5)])
    before = bench.model.memory.decide_one([(shared, "*", 0)], peek=True).verdicts()[0].remaining
    assert near.refund(answer.receipts()) == 1
    after = bench.model.memory.decide_one([(shared, "*", 0)], peek=True).verdicts()[0].remaining
    assert after - before == 5


def test_a_reset_counter_is_not_spent_from_old_leases(bench, shared) -> None:
    """After a reset this process spends nothing that was granted before: the counter will grant all of it again."""
    near = bench.near()
    bench.supply(near, shared)
    assert held(near, shared) > 0
    near.reset([(shared, "*")])
    assert held(near, shared) == 0


def test_a_peek_is_the_stores(bench, shared, own) -> None:
    """A peek is neither answered from leases nor from remembered refusals, and spends nothing."""
    near = bench.near()
    bench.supply(near, shared)
    for _ in range(4):
        near.decide_one([(own, "a", 1)])
    before = held(near, shared)
    answer = near.decide_one([(shared, "*", 1), (own, "a", 1)], peek=True)
    assert answer.verdicts()[1].remaining == 0
    assert type(answer.verdicts()[1]) is not LocalVerdict
    assert held(near, shared) == before
