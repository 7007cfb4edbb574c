"""The calls of a near store that have their answer when they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.verdict import Brief, new_local_verdict
from sluicegate.errors import StoreError
from sluicegate.stores.answer import single_of
from sluicegate.stores.base import Answer, Charge, Counter, Hitter, HitterWays, LeaseItem, Receipt, Request, Single
from sluicegate.stores.near.batches import Batch, Steps, answers_or_raise, sent
from sluicegate.stores.near.core import NearCore
from sluicegate.stores.near.front import Asking, takes_last
from sluicegate.stores.near.hitter import OPEN, Gate, make_hitter

__all__ = ["NearCalls"]


class NearCalls(NearCore):
    """Deciding and giving back, for whoever can wait for the store."""

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """Decide one request. See ``Store.decide_one``."""
        if peek:
            return self.hot.decide_one(request, peek=True)
        begun = self.begin(request)
        return self._ask(begun) if isinstance(begun, Asking) else begun

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """Decide a batch in order; what the store is asked goes into one call of it, as a rule. See ``Store.decide``."""
        if peek or not requests:
            return self.hot.decide(requests, peek=peek)
        batch = Batch(self.front, self, self.now_us, requests)
        self._run(batch.steps())
        return self._ended(batch)

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """Decide a batch of requests of one charge each. See ``Store.decide_singles``."""
        if peek or self._is_plain(charges):
            return self.store.decide_singles(charges, peek=peek)
        return _singles(self.decide([(charge,) for charge in charges]), self._wall_us)

    def decide_alike(self, counter: Counter, keys: Sequence[str], cost: int) -> list[Brief] | None:
        """See ``BulkStore``: the store's, where it has that and nothing of the counter is decided here."""
        if self._bulk is None or counter.precision is not Precision.EXACT or self.front.denials.active:
            return None
        return self._bulk.decide_alike(counter, keys, cost)

    def hitter(
        self,
        counter: Counter,
        key_of: Callable[[str], str],
        otherwise: Callable[[str, int], bool],
        refused: Callable[[str], None],
        ration: Callable[[], int] | None = None,
        gate: Gate = OPEN,
    ) -> Hitter:
        """See ``HitStore``. Fast where tokens of the name's counter are held here, or its refusal is known. ``gate``: while it is active all goes to ``otherwise``."""
        return make_hitter(self, counter, HitterWays(key_of, otherwise, refused, ration), gate)

    def refund(self, receipts: Sequence[Receipt]) -> int:
        """Give back what is due, in the store. See ``Store.refund``."""
        try:
            return self.store.refund(receipts)
        finally:
            self.forget([(receipt.counter, receipt.subject) for receipt in receipts])

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        """Give back up to the cost of each of what is used. See ``Store.grant``."""
        try:
            return self.hot.grant(charges)
        finally:
            self.forget([(counter, subject) for counter, subject, _ in charges])

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """Forget these counters; returns how many existed. See ``Store.reset``."""
        self._drop(keys)
        try:
            return self.hot.reset(keys)
        finally:
            self.forget(keys)

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        """The store's, for holders other than this one. See ``LeaseStore.lease``."""
        return self.store.lease(holder, terms, items)

    def close(self) -> None:
        """Give back what is held, and close the store."""
        self._keeper.close()
        self.hot.close()
        self._stop_listening()
        self.store.close()

    # ------------------------------------------------------------------ inside

    def _ask(self, asking: Asking) -> Answer:
        front, hot = self.front, self.hot
        if asking.plain:
            answer = hot.decide_one(asking.rest)
            if not answer.unanimous or takes_last(answer):
                self._learn(asking, answer)
            return answer
        result: Answer | StoreError | None = None
        while result is None:
            try:
                answer = hot.decide_one(asking.rest)
            except StoreError as error:
                with self._lock:
                    result = front.failed(asking, error, self.now_us())
            except BaseException:
                self._abandon(asking)
                raise
            else:
                with self._lock:
                    result = front.landed(asking, answer, self.now_us())
        self._listen()
        if asking.undo:
            self._undo(asking.undo)
        if isinstance(result, StoreError):
            raise result
        return result

    def _run(self, steps: Steps) -> None:
        """Perform a batch by synchronous calls."""
        try:
            asked = next(steps, None)
            while asked is not None:
                found: Sequence[Answer] | StoreError
                try:
                    found = self.hot.decide(asked)
                except StoreError as error:
                    found = error
                asked = sent(steps, found)
        finally:
            steps.close()

    def _ended(self, batch: Batch) -> list[Answer]:
        results = batch.results
        self._listen()
        if batch.undo:
            self._undo(batch.undo)
        return answers_or_raise(results)

    def _is_plain(self, charges: Sequence[Charge]) -> bool:
        """Whether the store decides all of these, as far as is known here."""
        exact = Precision.EXACT
        return not self.front.denials.active and all(charge[0][6] is exact for charge in charges)

    def _undo(self, receipts: Sequence[Receipt]) -> None:
        """Give back what a refused request was charged. Where that fails it stays charged: whether it was done is not known."""
        try:
            self.store.refund(receipts)
        except StoreError:
            self.stats.undo_failed += len(receipts)


def _singles(answers: Sequence[Answer], wall_us: Callable[[], int]) -> tuple[int, list[Single]]:
    """The lean form of answers to requests of one charge each, as of one time."""
    now_us = next((answer.now_us for answer in answers if answer.asked), None)
    singles: list[Single] = []
    for answer in answers:
        if answer.asked and answer.now_us != now_us:
            # Its state is of another time, so it is described here.
            singles.append((answer.admitted, new_local_verdict(answer.verdicts()[0])))
        else:
            singles.append(single_of(answer))
    return wall_us() if now_us is None else now_us, singles
