"""The deciding routes where counters are not in this process, so that decisions take time.

A check is answered by callback: no task and no future is made for it, and whatever asks while the store is busy rides in its next
call. A batch is one call of the store where all its items are plain. Other items are submitted in order and side by side, in
slices that the store can take; a store decides what is submitted in its order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from sluicegate.algorithms.spec import State
from sluicegate.bounds import HTTP_BATCH_SLICE
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.bodies import decision_id_of, items_of
from sluicegate.doors.http.faults import fault_reply
from sluicegate.doors.http.inline import each_of, single_of, texts_of
from sluicegate.doors.http.peers import Peers
from sluicegate.doors.http.replies import Replies, store_down
from sluicegate.doors.http.respond import Reply, json_reply
from sluicegate.doors.http.schema import Check, Checks, PlainCheck, as_check
from sluicegate.doors.http.site import Answer
from sluicegate.doors.http.stats import HttpStats
from sluicegate.errors import InternalError, InvalidRequest, ReceiptUnknown, StoreError
from sluicegate.limiter.async_calls import OnDecision
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter

__all__ = ["WaitingApi"]

_CHECK, _BATCH, _REFUND = "/v1/check", "/v1/check/batch", "/v1/refund"


class WaitingApi:
    """Handlers for ``Route.later``. Every answer is given exactly once, within the store's deadline."""

    def __init__(
        self,
        limiter: Limiter,
        headers: RateHeaders,
        checks: Checks,
        replies: Replies,
        stats: HttpStats,
        peers: Peers | None = None,
    ) -> None:
        self._limiter = limiter
        self._headers = headers
        self._checks = checks
        self._replies = replies
        self._stats = stats
        self._peers = peers
        # The loop itself refers to tasks only weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, body: bytes, answer: Answer) -> None:
        """``POST /v1/check``."""
        try:
            check = self._checks.memo.young.get(body) or self._checks.read(body)
            if isinstance(check, PlainCheck):
                if self._headers.delta_only and self._limiter.enabled:
                    self._limiter.submit_single(check.charge, partial(self._single, check, answer))
                    return
                check = as_check(check)
            self._submit(check, partial(self._decided, check, answer))
        except InvalidRequest as error:
            answer(self._replies.refused_request(error))
        except StoreError as error:
            answer(store_down(error))

    def batch(self, body: bytes, answer: Answer) -> None:
        """``POST /v1/check/batch``: each item as if it came alone, in order; one bad item spoils no other."""
        self._start(_BATCH, self._batch(body), answer)

    def refund(self, body: bytes, answer: Answer) -> None:
        """``POST /v1/refund``: give back what the decision with this id charged; good once."""
        self._start(_REFUND, self._refund(body), answer)

    # ------------------------------------------------------------------ called with answers

    def _single(
        self, check: PlainCheck, answer: Answer, admitted: bool, state: State | None, now_us: int, degraded: bool
    ) -> None:
        try:
            (_, remaining, wait_us), text = single_of(check, (admitted, state), now_us, degraded=degraded)
            lines = self._headers.delta_lines(check.policy.texts, remaining, wait_us, refused=not admitted)
            reply = json_reply(200 if admitted else 429, text.encode(), lines)
        except Exception:  # noqa: BLE001 - a fault of ours must not leave the client without an answer
            reply = fault_reply(self._stats, _CHECK)
        answer(reply)

    def _decided(self, check: Check, answer: Answer, decision: Decision) -> None:
        try:
            reply = self._replies.decided(check, decision)
        except Exception:  # noqa: BLE001 - as above
            reply = fault_reply(self._stats, _CHECK)
        answer(reply)

    # ------------------------------------------------------------------ inside

    def _submit(self, check: Check, done: OnDecision) -> None:
        charge = check.charge
        if charge is not None:
            counter, subject, cost = charge
            self._limiter.submit_counter(counter, subject, cost, done, peek=check.peek, receipt=check.receipt)
        elif check.facts is not None:
            self._limiter.submit(check.facts, done, check.cost, peek=check.peek, receipt=check.receipt)
        else:
            raise InternalError("a check has neither a charge nor facts")

    def _start(self, route: str, work: Coroutine[Any, Any, Reply], answer: Answer) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(route, work, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, route: str, work: Coroutine[Any, Any, Reply], answer: Answer) -> None:
        try:
            reply = await work
        except InvalidRequest as error:
            reply = self._replies.refused_request(error)
        except StoreError as error:
            reply = store_down(error)
        except Exception:  # noqa: BLE001 - as above
            reply = fault_reply(self._stats, route)
        answer(reply)

    async def _refund(self, body: bytes) -> Reply:
        try:
            return self._replies.refunded(await self._limiter.arefund(decision_id_of(body), strict=True))
        except ReceiptUnknown:
            # The decision may have come on a connection to another process.
            known = None if self._peers is None else await self._peers.refund(body)
            if known is None:
                raise
            return known

    async def _batch(self, body: bytes) -> Reply:
        plain = self._checks.read_batch(body) if self._limiter.enabled else None
        if plain is not None:
            checks = each_of(plain)
            answers = await self._limiter.adecide_counters([check.charge for check in checks])
            return self._replies.batch(texts_of(checks, answers))
        items = items_of(body)
        texts: list[str] = []
        for first in range(0, len(items), HTTP_BATCH_SLICE):
            texts += await self._slice(items[first : first + HTTP_BATCH_SLICE])
        return self._replies.batch(texts)

    async def _slice(self, items: Sequence[bytes]) -> list[str]:
        """The answers to these items, which wait for the store together."""
        part = _Slice(len(items))
        for place, raw in enumerate(items):
            try:
                found = self._checks.read(raw)
                check = as_check(found) if isinstance(found, PlainCheck) else found
                self._submit(check, partial(self._item, part, place, check))
            except InvalidRequest as error:
                part.put(place, self._replies.bad(error).decode())
        return await part.complete

    def _item(self, part: _Slice, place: int, check: Check, decision: Decision) -> None:
        try:
            part.put(place, self._replies.item(check, decision))
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the batch without an answer
            part.fail(error)


class _Slice:
    """Texts by place; ``complete`` is done when all are there."""

    __slots__ = ("_missing", "_texts", "complete")

    def __init__(self, size: int) -> None:
        self._texts = [""] * size
        self._missing = size
        self.complete: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    def put(self, place: int, text: str) -> None:
        self._texts[place] = text
        self._missing -= 1
        if not self._missing and not self.complete.done():
            self.complete.set_result(self._texts)

    def fail(self, error: Exception) -> None:
        if not self.complete.done():
            self.complete.set_exception(error)
