"""What splitting a counter says to the store that has it: exchanges of ``splits``, by a thread that may wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sluicegate.algorithms.verdict import DENIED
from sluicegate.bounds import CAPACITY_MAX, SPLIT_USE_US
from sluicegate.errors import StoreError
from sluicegate.stores.base import Request, Store
from sluicegate.stores.near.splits import Split

__all__ = ["Begun", "begin", "renew"]


class Begun(NamedTuple):
    """``shut_us``: the gate was shut, by what was sent then; None: it was not. ``wait_us``: the gate is shut by others for so long, None: it is not."""

    shut_us: int | None
    wait_us: int | None


def begin(store: Store, split: Split, now_us: Callable[[], int]) -> Begun:
    """Split a counter that nobody has split. Raises StoreError where nothing, or only emptying the parts, was done."""
    whole, subject = split.whole, split.subject
    claimed_us = now_us()
    answer = store.decide_one([(whole.gate, subject, 1), (whole.claim, subject, 1)])
    if not answer.admitted:
        gate = answer.verdicts()[0]
        return Begun(None, gate.retry_after_us if gate.outcome is DENIED else None)
    # Whatever they held from the last time is gone, before anybody is told to use them.
    store.decide([[(part, split.subjects[place], part.spec.capacity)] for place, part in enumerate(whole.drains)])
    shut_us = now_us()
    if shut_us - claimed_us >= SPLIT_USE_US:
        # Somebody else may hold the claim by now. If he has filled the parts already, what was in them is lost; nothing is admitted twice.
        return Begun(None, None)
    store.decide_one([(whole.shut, subject, CAPACITY_MAX)])
    try:
        _fill(store, split)
    except StoreError:
        # The gate is shut, and the parts begin with nothing.
        return Begun(shut_us, None)
    return Begun(shut_us, None)


def _fill(store: Store, split: Split) -> None:
    """Give each part its share of what the whole has left."""
    whole, capacity = split.whole, split.whole.counter.spec.capacity
    level = store.decide_one([(whole.counter, split.subject, 1)], peek=True).verdicts()[0].remaining
    shares = [level * part.spec.capacity // capacity for part in whole.parts]
    given = [
        (part, subject, share)
        for part, subject, share in zip(whole.parts, split.subjects, shares, strict=True)
        if share > 0
    ]
    if given:
        store.grant(given)


def renew(store: Store, split: Split, admitted: int, *, shut: bool) -> None:
    """Charge the whole with ``admitted`` tokens of its parts, and (``shut``) keep its gate shut. Raises StoreError: perhaps nothing was done."""
    whole, subject = split.whole, split.subject
    requests: list[Request] = []
    if shut:
        requests.append([(whole.shut, subject, CAPACITY_MAX)])
    if admitted:
        # What refuses is charged up to all of it, so more than that says no more.
        requests.append([(whole.told, subject, min(admitted, whole.counter.spec.capacity))])
    store.decide(requests)
