"""The way of one event loop to one server: one connection, on which everything that waits rides together.

Nothing in flight: what is submitted in one round of the loop is sent at its end. Something in flight: what is submitted meanwhile is
sent when the last reply of it has come. No timer decides when to send, so an idle store answers at once and a busy one gets large
batches.

A request waits no longer than its deadline, wherever it is: for a connection, in line, or for its reply. One that is told so early does
not disturb those sent with it. Where nobody waits any more for anything in flight the connection is given up: the server, or the way
to it, is not there. It has at least as long for its answer as a decision may take. Connecting has a time of its own and goes on while those that wait for it give up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from sluicegate.bounds import REDIS_BATCH_MAX, REDIS_LATE_LOOP_DIVISOR, REDIS_WAITING_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import StoreError
from sluicegate.stores.base import Done, Request
from sluicegate.stores.redis.async_link import AsyncLink
from sluicegate.stores.redis.core import Core, closed_error, unsendable
from sluicegate.stores.redis.faults import CONNECT_ANEW, OF_THE_SERVER, ServerFault
from sluicegate.stores.redis.inflight import AlongSide, Batch, Item, Outbound, tell
from sluicegate.stores.redis.link import ReplyError, packed
from sluicegate.stores.redis.node import Node

__all__ = ["Lane"]

_ASKING = packed(((b"ASKING",),))

_RUN_SHIFT = 16
"""The number of a run stands above a group (a hash slot, of which a cluster has 2**14) and the bit that tells a peek."""


class Lane:
    """A lane belongs to its loop and is used on it only. ``elsewhere`` takes what another server is to be sent, ``apart`` a batch
    whose requests must be decided one by one.
    """

    __slots__ = (
        "_apart", "_began_us", "_connecting", "_core", "_elsewhere", "_groups", "_inflight", "_leave", "_link", "_loop", "_node", "_outbound", "_patience_s", "_runs", "_scheduled", "_timer", "_timer_s", "_waiting", "closed",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        node: Node,
        loop: asyncio.AbstractEventLoop,
        elsewhere: Callable[[Outbound], None],
        apart: Callable[[Batch], None],
    ) -> None:
        self._core = core
        self._node = node
        self._loop = loop
        self._elsewhere = elsewhere
        self._apart = apart
        self._groups: dict[int, list[Item]] = {}
        """Requests in line, by group and by whether they are peeks; those that a request of the other kind follows, by run too."""
        self._runs = 0
        self._outbound: list[Outbound] = []
        """Commands in line."""
        self._waiting = 0
        """How many are in line."""
        self._inflight: deque[Outbound | None] = deque()
        """What replies are due for, in their order; None stands for a reply without meaning."""
        self._began_us = 0
        self._patience_s = 0.0
        """Until then the connection is not given up."""
        self._link: AsyncLink | None = None
        self._leave = False
        """The connection is of no more use when what is in flight has landed."""
        self._connecting: asyncio.Task[None] | None = None
        self._scheduled = False
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        self.closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._inflight and not self._waiting

    # ------------------------------------------------------------------ getting in line

    def submit(self, request: Request, done: Done, group: int, deadline_s: float, *, peek: bool) -> None:
        """Have a request of this group decided. ``done`` may be called at once."""
        if self._waiting >= REDIS_WAITING_MAX or not self._node.breaker.closed:
            error = self._turned_away()
            if error is not None:
                tell(done, error)
                return
        key = group << 1 | peek
        items = self._groups.get(key)
        if items is None:
            # Peeks are a command of their own, and neither kind may overtake what came before it.
            before = self._groups.pop(key ^ 1, None)
            if before is not None:
                self._runs += 1
                self._groups[self._runs << _RUN_SHIFT | key ^ 1] = before
            items = self._groups[key] = []
        items.append((request, done, deadline_s))
        self._in_line(deadline_s)

    def add(self, outbound: Outbound) -> None:
        """Have a command sent."""
        error = self._turned_away()
        deadline_s = outbound.deadline_s()
        if error is not None:
            outbound.fail(error)
        elif deadline_s is not None:
            self._outbound.append(outbound)
            self._in_line(deadline_s)

    def _turned_away(self) -> StoreError | None:
        if self.closed or self._core.closed:
            return closed_error()
        error = self._node.refusal()
        if error is not None:
            self._core.router.after_failure(self._node)
        elif self._waiting >= REDIS_WAITING_MAX:
            self._core.stats.overflowed += 1
            return StoreError(f"{REDIS_WAITING_MAX} requests wait for Redis at {self._node.address} already")
        return error

    def _in_line(self, deadline_s: float) -> None:
        self._waiting += 1
        if not self._scheduled and not self._inflight:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        if self._timer is None:
            self._wake_at(deadline_s)
        elif deadline_s < self._timer_s:
            self._timer.cancel()
            self._wake_at(deadline_s)

    def _wake_at(self, when_s: float) -> None:
        self._timer_s = when_s
        self._timer = self._loop.call_at(when_s, self._tick)

    # ------------------------------------------------------------------ sending

    def _flush(self) -> None:
        """Send all that is in line, where nothing is in flight."""
        self._scheduled = False
        if self._inflight or not self._waiting or self.closed:
            return
        link = self._link
        if link is None:
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())
            return
        core = self._core
        now_s = self._loop.time()
        self._began_us = began_us = core.clock.monotonic_us()
        self._patience_s = now_s + core.timeout_us / US_PER_S
        data: list[bytes] = []
        if began_us >= core.riders.next_us:
            for rider in core.riders_for(self._node):
                self._put(AlongSide(core, rider, self._fail_all_with), data)
        for outbound in self._all_in_line(now_s):
            self._put(outbound, data)
        core.stats.calls += len(data)
        if data:
            link.write(data)

    def _all_in_line(self, now_s: float) -> list[Outbound]:
        """Everything that is in line as commands; nothing is in line then."""
        found, self._outbound = self._outbound, []
        groups, self._groups = self._groups, {}
        self._waiting = 0
        # The timer tells whoever has waited long enough. Whoever has and was not told waited for the loop, not for the server.
        until_s = now_s + self._core.timeout_us / (US_PER_S * REDIS_LATE_LOOP_DIVISOR)
        for key, items in groups.items():
            for first in range(0, len(items), REDIS_BATCH_MAX):
                batch = items if len(items) <= REDIS_BATCH_MAX else items[first : first + REDIS_BATCH_MAX]
                found.append(Batch(self._core, batch, key >> 1, peek=bool(key & 1)))
        for outbound in found:
            deadline_s = outbound.deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                outbound.extend(until_s)
        return found

    def _put(self, outbound: Outbound, data: list[bytes]) -> None:
        """Add a command to what is sent."""
        try:
            words = packed((outbound.words(),))
        except Exception as error:  # noqa: BLE001
            # A request that cannot be packed (a counter of a foreign spec, a key that is no text) must not fail those beside it.
            if isinstance(outbound, Batch) and len(outbound.items) > 1:
                for part in outbound.split():
                    self._put(part, data)
            else:
                outbound.fail(unsendable(error))
            return
        if outbound.asking:
            data.append(_ASKING)
            self._inflight.append(None)
        data.append(words)
        self._inflight.append(outbound)

    def _fail_all_with(self, fault: StoreError) -> None:
        """What was sent with a rider is worth nothing."""
        for outbound in self._inflight:
            if outbound is not None:
                outbound.fault = fault

    # ------------------------------------------------------------------ receiving

    def received(self, link: AsyncLink, replies: list[Any]) -> None:
        """Replies came, in the order of what is in flight."""
        inflight = self._inflight
        if self._waiting and self._may_go_on(replies):
            # The server decides what is in line while those are told that were before them.
            landed, self._inflight = inflight, deque()
            self._flush()
            inflight = landed
        healthy = True
        for reply in replies:
            if not inflight:
                # Nobody asked: whatever this is, the next command must not take it for its reply.
                self._leave = True
                break
            outbound = inflight.popleft()
            if outbound is not None:
                healthy = self._land(outbound, reply) and healthy
        if link is not self._link:
            # Whoever was told has closed the lane.
            return
        if healthy and not self._node.breaker.calm:
            self._node.breaker.succeeded()
        if not self._inflight:
            if self._leave:
                self._hang_up()
            if self._waiting:
                self._flush()

    def _may_go_on(self, replies: list[Any]) -> bool:
        """Whether these are all the replies that are due, and all are answers: no rider's, and nothing that is to be sent again before what is in line."""
        inflight, is_answer = self._inflight, self._core.packing.is_answer
        return (
            len(replies) == len(inflight)
            and not self._leave
            and all(type(outbound) is Batch for outbound in inflight)
            and all(is_answer(reply) for reply in replies)
        )

    def _land(self, outbound: Outbound, reply: Any) -> bool:
        """Take one reply; False where it speaks against the server."""
        if outbound.fault is not None:
            outbound.fail(outbound.fault)
            return True
        if type(reply) is ReplyError and type(outbound) is not AlongSide:
            return self._land_error(outbound, reply)
        try:
            finished = outbound.landed(reply)
        except Exception as error:  # noqa: BLE001
            # Of a server that is none of ours; whoever waits must hear something.
            outbound.fail(StoreError(f"Redis at {self._node.address} answers what cannot be read: {error}"))
            return True
        if not finished:
            outbound.node = self._node
            self._elsewhere(outbound)
        return True

    def _land_error(self, outbound: Outbound, reply: ReplyError) -> bool:
        fault = self._core.after_error(outbound, self._node, reply, self._began_us)
        if fault is None:
            self._elsewhere(outbound)
            return True
        if fault.code in CONNECT_ANEW:
            self._leave = True
        if fault.code == "TRYAGAIN" and isinstance(outbound, Batch):
            self._apart(outbound)
        else:
            outbound.fail(fault)
        return not _speaks_of_server(fault)

    def lost(self, link: AsyncLink, error: OSError) -> None:
        """The connection was closed by the other side."""
        if link is self._link:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Whether what is in flight was done is not known, so it is not sent again."""
        self._hang_up()
        inflight, self._inflight = self._inflight, deque()
        if inflight:
            found = self._node.lost(self._began_us, error)
            self._core.router.after_failure(self._node)
            for outbound in inflight:
                if outbound is not None:
                    outbound.fail(found)
        refusal = self._node.refusal() if self._waiting else None
        if refusal is not None:
            self._fail_line(refusal)
        elif self._waiting:
            self._flush()

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        self._leave = False
        if link is not None and not link.closed:
            link.close()

    def _fail_line(self, error: StoreError) -> None:
        """Tell all in line that nothing is sent to this server now."""
        for outbound in self._all_in_line(self._loop.time()):
            outbound.fail(error)

    # ------------------------------------------------------------------ connecting

    async def _connect(self) -> None:
        node = self._node
        began_us = self._core.clock.monotonic_us()
        try:
            link = await AsyncLink.connect(node.settings, node.connect_us / US_PER_S, self)
        except Exception as failure:  # noqa: BLE001
            # Whatever it is, those that wait must hear of it.
            error = (
                failure
                if isinstance(failure, StoreError)
                else StoreError(f"no connection to Redis at {node.address}: {failure}")
            )
            self._connecting = None
            node.failed(began_us, str(error))
            self._core.router.after_failure(node)
            self._fail_line(error)
        else:
            self._connecting = None
            self._core.stats.connects += 1
            node.connected()
            self._link = link
            self._flush()

    # ------------------------------------------------------------------ deadlines

    def _tick(self) -> None:
        """The earliest deadline there was when the timer was set has come; that one may have its reply."""
        earliest_s = min(self._deadlines(), default=None)
        if earliest_s is None:
            self._timer = None
        elif earliest_s > self._loop.time():
            self._wake_at(earliest_s)
        else:
            # The loop may be late, not the server. A callback runs before what its round of the loop reads, so what has come by
            # now is read before the second one.
            self._timer_s = 0.0
            self._timer = self._loop.call_soon(self._loop.call_soon, self._expire)

    def _deadlines(self) -> Iterator[float]:
        for items in self._groups.values():
            yield items[0][2]
        for outbound in self._outbound:
            if (deadline_s := outbound.deadline_s()) is not None:
                yield deadline_s
        if self._inflight:
            awaited = [one.deadline_s() for one in self._inflight if one is not None]
            yield min((deadline_s for deadline_s in awaited if deadline_s is not None), default=self._patience_s)

    def _expire(self) -> None:
        """Tell those whose deadline has passed."""
        if self.closed:
            return
        self._timer = None
        now_s = self._loop.time()
        self._expire_line(now_s)
        late = StoreError(f"Redis at {self._node.address} does not answer in time")
        for outbound in list(self._inflight):
            if outbound is not None:
                outbound.expire(now_s, late)
        if self._inflight and now_s >= self._patience_s and not any(map(_is_awaited, self._inflight)):
            self._give_up(TimeoutError())
        self._rearm()

    def _rearm(self) -> None:
        """Set the timer, unless somebody who was told has submitted again, or closed the lane."""
        if self._timer is None and not self.closed:
            self._tick()

    def _expire_line(self, now_s: float) -> None:
        """Tell those in line whose deadline has passed; within a group deadlines ascend."""
        told: list[Done] = []
        for key, items in list(self._groups.items()):
            if items[0][2] > now_s:
                continue
            late = next((place for place, item in enumerate(items) if item[2] > now_s), len(items))
            told += [done for _, done, _ in items[:late]]
            del items[:late]
            if not items:
                del self._groups[key]
        waiting: list[Outbound] = []
        kept: list[Outbound] = []
        for outbound in self._outbound:
            (waiting if (outbound.deadline_s() or now_s) <= now_s else kept).append(outbound)
        if not told and not waiting:
            return
        self._outbound = kept
        self._waiting -= len(told) + len(waiting)
        self._core.stats.expired += len(told) + len(waiting)
        if self._link is None:
            error = StoreError(f"no connection to Redis at {self._node.address} in time")
        else:
            error = StoreError(f"nothing was sent in time to Redis at {self._node.address}")
        for done in told:
            tell(done, error)
        for outbound in waiting:
            outbound.fail(error)

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Close the connection; whoever waits is told."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._hang_up()
        inflight, self._inflight = self._inflight, deque()
        for outbound in inflight:
            if outbound is not None:
                outbound.fail(closed_error())
        self._fail_line(closed_error())


def _is_awaited(outbound: Outbound | None) -> bool:
    return outbound is not None and outbound.deadline_s() is not None


def _speaks_of_server(fault: ServerFault) -> bool:
    return fault.code in OF_THE_SERVER
