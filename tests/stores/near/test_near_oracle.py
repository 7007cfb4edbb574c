"""A near store refuses by itself only what the store behind it would refuse at that moment, whatever it was told before."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_specs import SPECS

from sluicegate.algorithms import Spec
from sluicegate.stores.base import Counter, Receipt
from sluicegate.stores.near import NearSettings

STEPS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 9), st.sampled_from(("near", "near", "other", "refund", "reset"))),
    min_size=4,
    max_size=60,
)


@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(SPECS, STEPS, st.integers(1, 3))
def test_a_refusal_of_a_near_store_is_one_of_the_store(
    bench, counter_of: Callable[..., Counter], spec: Spec, steps: list[tuple[int, int, str]], scale: int
) -> None:
    """Whether it learned from a refusal or from the charge that took the last token, with costs that differ and another process that asks the store."""
    fresh = type(bench)()
    near = fresh.near(NearSettings(trust_us=10_000_000))
    counter = counter_of(spec=spec)
    receipts: list[Receipt] = []
    for pause, cost, who in steps:
        fresh.clock.advance(pause * scale * max(spec.window_us // 300, 1))
        charge = ((counter, "user:1", min(cost, spec.capacity)),)
        if who == "other":
            fresh.model.memory.decide_one(charge)
        elif who == "refund" and receipts:
            near.refund([receipts.pop()])
        elif who == "reset":
            near.reset([(counter, "user:1")])
        else:
            expected = fresh.model.memory.decide_one(charge, peek=True).admitted
            answer = near.decide_one(charge)
            assert answer.admitted == expected
            receipts += answer.receipts()
