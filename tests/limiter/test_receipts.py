"""Receipts: a charge given back, once."""

from __future__ import annotations

import asyncio

import pytest

from sluicegate.bounds import RECEIPT_TTL_US
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import InvalidRequest, ReceiptUnknown, StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.receipts import Receipts, refund_all
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore


def limiter_of(quota: str = "10/minute") -> tuple[Limiter, ManualClock]:
    clock = ManualClock()
    return Limiter.from_quota(quota, clock=clock), clock


def test_a_refund_gives_back_once() -> None:
    """A decision made with a receipt can be given back, by itself or its id, once; the second time gives nothing."""
    # P82 P54
    limiter, _ = limiter_of()
    decision = limiter.check("k", 4, receipt=True)
    assert limiter.peek("k").remaining == 6
    assert limiter.refund(decision) == 1
    assert limiter.refund(decision) == 0
    assert limiter.refund(decision.decision_id or "") == 0
    assert limiter.peek("k").remaining == 10
    assert limiter.stats.refunds == 1


def test_every_counter_of_the_request_gets_its_part() -> None:
    """A refund of a decision by three rules gives back to all three."""
    limiter = Limiter.from_rules(
        load_rules(
            "version: 1\nrules: [{name: a, quota: 10/hour}, {name: b, quota: 5/hour}, {name: c, quota: 2/hour}]", "r"
        ),
        clock=ManualClock(),
    )
    decision = limiter.check({}, 2, receipt=True)
    assert limiter.refund(decision) == 3
    assert [result.remaining for result in limiter.peek({}, 0).results] == [10, 5, 2]


def test_strict_refunds_say_what_is_unknown() -> None:
    """With ``strict`` an unknown, used or expired receipt is an InvalidRequest of its own kind."""
    limiter, clock = limiter_of()
    with pytest.raises(ReceiptUnknown) as caught:
        limiter.refund("no such id", strict=True)
    assert caught.value.field == "decision_id"
    decision = limiter.check("k", receipt=True)
    limiter.refund(decision, strict=True)
    with pytest.raises(ReceiptUnknown):
        limiter.refund(decision, strict=True)
    late = limiter.check("k", receipt=True)
    clock.advance(RECEIPT_TTL_US)
    with pytest.raises(ReceiptUnknown):
        limiter.refund(late, strict=True)


def test_no_receipt_without_asking() -> None:
    """A decision without a receipt cannot be refunded, and says how to get one."""
    limiter, _ = limiter_of()
    decision = limiter.check("k")
    assert decision.decision_id is None
    with pytest.raises(InvalidRequest, match="receipt=True"):
        limiter.refund(decision)


def test_refusals_and_peeks_have_none() -> None:
    """Where nothing was charged there is nothing to give back, so there is no receipt."""
    limiter, _ = limiter_of("1/minute")
    assert limiter.check("k", peek=True, receipt=True).decision_id is None
    assert limiter.check("k", receipt=True).decision_id
    assert limiter.check("k", receipt=True).decision_id is None
    limiter.enabled = False
    assert limiter.check("k", receipt=True).decision_id is None


def test_ids_cannot_be_guessed() -> None:
    """Ids are long, random and never repeat."""
    limiter, _ = limiter_of("1000/minute")
    ids = {limiter.check("k", receipt=True).decision_id for _ in range(500)}
    assert len(ids) == 500
    assert all(len(decision_id or "") >= 22 for decision_id in ids)


def test_what_time_gave_back_is_not_given_twice() -> None:
    """A refund after half the drain gives back half; the counter is never more than full."""
    limiter, clock = limiter_of()
    decision = limiter.check("k", 10, receipt=True)
    clock.advance(30 * US_PER_S)
    assert limiter.peek("k").remaining == 5
    limiter.refund(decision)
    assert limiter.peek("k").remaining == 10
    assert [limiter.hit("k") for _ in range(11)] == [True] * 10 + [False]


def test_receipts_expire_and_are_bounded() -> None:
    """A table of receipts holds at most its maximum, forgets the oldest first and counts what it forgot early."""
    clock = ManualClock()
    store = MemoryStore(clock)
    receipts = Receipts(clock, max_receipts=3, ttl_us=10 * US_PER_S)
    ids = [receipts.give((store, ())) for _ in range(5)]
    assert (len(receipts), receipts.dropped) == (3, 2)
    with pytest.raises(ReceiptUnknown):
        refund_all(receipts.take(ids[0]))
    assert refund_all(receipts.take(ids[4])) == 0
    clock.advance(10 * US_PER_S)
    with pytest.raises(ReceiptUnknown):
        refund_all(receipts.take(ids[3]))
    for _ in range(3):
        receipts.give((store, ()))
    assert (len(receipts), receipts.dropped) == (3, 2)


def test_a_wall_clock_step_does_not_expire_receipts() -> None:
    """The life of a receipt is measured on the monotonic clock."""
    limiter, clock = limiter_of()
    decision = limiter.check("k", receipt=True)
    clock.set(clock.now_us() + 10 * RECEIPT_TTL_US)
    limiter.refund(decision, strict=True)


def test_a_failed_refund_uses_the_receipt_up() -> None:
    """Where the store fails during a refund nobody knows whether it was made, so it is not made again."""
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_quota("10/minute", store=store, clock=clock)
    decision = limiter.check("k", 5, receipt=True)
    store.lose_next = 1
    with pytest.raises(StoreError):
        limiter.refund(decision)
    assert limiter.refund(decision) == 0
    assert limiter.peek("k").remaining == 10


def test_a_degraded_decision_is_refunded_where_it_was_charged() -> None:
    """A receipt of a decision by the local fallback gives back to the fallback's counter."""
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_quota("10/minute", store=store, clock=clock)
    store.down = True
    decision = limiter.check("k", 5, receipt=True)
    assert decision.degraded
    store.down = False
    assert limiter.refund(decision) == 1
    store.down = True
    assert limiter.peek("k").remaining == 10


@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_window", "sliding_log"])
def test_a_refund_after_a_reset_gives_nothing(algorithm: str) -> None:
    """A reset has given the charge back; its receipt does not give it back again, out of what others used since."""
    limiter = Limiter.from_quota("10/minute", algorithm=algorithm, clock=ManualClock())
    before = limiter.check("k", 4, receipt=True)
    other = limiter.check("other", 4, receipt=True)
    assert limiter.reset("k") == 1
    after = limiter.check("k", 5, receipt=True)
    assert limiter.refund(before) == 0
    assert limiter.peek("k").remaining == 5
    assert limiter.refund(other) == 1
    assert limiter.refund(after) == 1
    assert limiter.peek("k").remaining == 10


def test_remembered_resets_are_bounded() -> None:
    """Resets are remembered only while receipts are out, and never more of them than receipts may be kept."""
    clock = ManualClock()
    limiter = Limiter.from_rules(load_rules("version: 1\nrules: [{name: a, quota: 10/hour}]", "r"), clock=clock)
    ((counter, _, _),) = limiter.engine.plan(Facts()).charges
    keys = [(counter, f"user:{number}") for number in range(50)]
    receipts = Receipts(clock, max_receipts=3)
    receipts.forget(keys)
    assert len(receipts._resets) == 0
    receipts.give((limiter.store, []))
    receipts.forget(keys)
    assert len(receipts._resets) == 3


@pytest.mark.parametrize("value", [None, 5, b"x"], ids=repr)
def test_what_is_no_receipt_is_an_invalid_request(value: object) -> None:
    """Refunding something else than a decision or an id is the caller's mistake, and says so."""
    limiter, _ = limiter_of()
    with pytest.raises(InvalidRequest, match="decision_id"):
        limiter.refund(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("on_loop", [True, False])
def test_a_door_takes_back_what_it_cannot_use(on_loop: bool) -> None:
    """What was just charged is given back: on a loop in a moment, on a thread before the call returns."""
    clock = ManualClock()
    store = LaterStore(MemoryStore(clock))
    limiter = Limiter.from_quota("10/minute", store=store, clock=clock)

    async def take_back() -> None:
        limiter.take_back(await limiter.acheck("k", 4))
        assert limiter.peek("k").remaining == 6
        for _ in range(3):
            await asyncio.sleep(0)

    if on_loop:
        asyncio.run(take_back())
    else:
        limiter.take_back(limiter.check("k", 4))
    assert limiter.peek("k").remaining == 10
