"""What one event loop has of a Redis store: a lane to each server, and operations of several steps under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sluicegate.bounds import REDIS_UNDO_DIVISOR, REDIS_WAITING_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import StoreError
from sluicegate.stores.base import Done, Request
from sluicegate.stores.redis.calls import Steps, Undo
from sluicegate.stores.redis.cluster_calls import ClusterCalls
from sluicegate.stores.redis.core import Core, closed_error, unsendable
from sluicegate.stores.redis.inflight import Batch, Landed, Outbound, Sendable, Single, tell
from sluicegate.stores.redis.lane import Lane
from sluicegate.stores.redis.node import Node
from sluicegate.stores.redis.router import SEVERAL, SingleRouter
from sluicegate.stores.redis.several import PartWaiter, Several

__all__ = ["LoopSide"]


class LoopSide:
    """Belongs to its loop and is used on it only."""

    __slots__ = ("_core", "_lanes", "_only", "_parked", "_timeout_s", "closed", "loop")

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self.loop = loop
        self.closed = False
        self._timeout_s = core.timeout_us / US_PER_S
        self._lanes: dict[Node, Lane] = {}
        self._only: Lane | None = None
        """The lane of a store that is one server: nothing is to be routed."""
        if isinstance(core.router, SingleRouter):
            self._only = self._lane(core.router.node_of(0))
        self._parked: deque[tuple[Callable[[], None], Landed, asyncio.TimerHandle]] = deque()

    def deadline_s(self) -> float:
        """The loop's time at which a decision that is asked for now must be told."""
        return self.loop.time() + self._timeout_s

    def undo_deadline_s(self, deadline_s: float) -> float:
        """Until when something may be taken back whose decision must be told at ``deadline_s``."""
        return max(deadline_s, self.loop.time() + self._timeout_s / REDIS_UNDO_DIVISOR)

    # ------------------------------------------------------------------ requests

    def submit(self, request: Request, done: Done, *, peek: bool) -> None:
        """See ``AsyncStore.submit``."""
        core = self._core
        deadline_s = self.loop.time() + self._timeout_s
        if self._only is not None and core.subjects.ready and not core.closed:
            self._only.submit(request, done, 0, deadline_s, peek=peek)
        else:
            self._when_ready(partial(self._route, request, done, deadline_s, peek=peek), done, deadline_s)

    def _route(self, request: Request, done: Done, deadline_s: float, *, peek: bool) -> None:
        router = self._core.router
        try:
            group = router.group_of(request)
            if group == SEVERAL:
                calls = self._core.calls
                assert isinstance(calls, ClusterCalls)
                Several(self, calls.composition, request, done, deadline_s, peek=peek).begin()
                return
        except Exception as error:  # noqa: BLE001
            # Of keys that are no text, too: whoever waits must hear of it, and those beside it must not.
            tell(done, unsendable(error))
        else:
            self.submit_part(request, done, group, deadline_s, peek=peek)

    def _one_by_one(self, batch: Batch) -> None:
        """Decide the requests of a batch each by itself: some of its keys have moved to another server, and some have not yet."""
        for request, done, deadline_s in batch.left():
            if isinstance(done, PartWaiter):
                # The whole request is decided key by key, as one operation.
                done.moving()
                continue
            self.start(self._core.calls.decide_one(request, peek=batch.peek), done, deadline_s)

    # ------------------------------------------------------------------ operations

    def run(self, steps: Steps[Any], done: Landed, deadline_s: float) -> None:
        """Perform an operation; ``done`` gets its result or its exception."""
        self._when_ready(partial(self.start, steps, done, deadline_s), done, deadline_s)

    def start(self, steps: Steps[Any], done: Landed, deadline_s: float) -> None:
        """``run`` on a store that is ready."""
        _Run(self, steps, done, deadline_s).advance(None)

    def submit_part(self, request: Request, done: Done, group: int, deadline_s: float, *, peek: bool) -> None:
        """``submit`` a request, or a part of one, whose group is known, on a store that is ready."""
        try:
            lane = self._lane(self._core.router.node_of(group))
        except StoreError as error:
            tell(done, error)
        else:
            lane.submit(request, done, group, deadline_s, peek=peek)

    def send(self, command: Sendable, landed: Landed, deadline_s: float) -> None:
        """Send one command; ``landed`` gets its reply or a StoreError."""
        try:
            group = self._core.router.group_of_key(command.keys[0] if command.keys else b"")
        except Exception as error:  # noqa: BLE001
            tell(landed, unsendable(error))
            return
        self._elsewhere(Single(command, group, landed, deadline_s))

    def send_to(self, node: Node, command: Sendable, landed: Landed, deadline_s: float) -> None:
        """``send`` to this server."""
        single = Single(command, 0, landed, deadline_s)
        single.node = node
        self._elsewhere(single)

    def _elsewhere(self, outbound: Outbound) -> None:
        try:
            lane = self._lane(outbound.node or self._core.router.node_of(outbound.group))
        except StoreError as error:
            outbound.fail(error)
        else:
            lane.add(outbound)

    def _lane(self, node: Node) -> Lane:
        if self.closed:
            # Of an operation that goes on when its connections are closed: its next step is not sent.
            raise closed_error()
        lane = self._lanes.get(node)
        if lane is None:
            self._forget_nodes()
            lane = self._lanes[node] = Lane(self._core, node, self.loop, self._elsewhere, self._one_by_one)
        return lane

    def _forget_nodes(self) -> None:
        """Let go of servers that are no longer part of the store."""
        for node in [node for node, lane in self._lanes.items() if node.links.closed and lane.is_idle]:
            self._lanes.pop(node).close()

    # ------------------------------------------------------------------ before the store is ready

    def _when_ready(self, act: Callable[[], None], done: Landed, deadline_s: float) -> None:
        """Do it at once, or when the store is ready; ``done`` gets a StoreError where it is not ready in time."""
        core = self._core
        if self.closed or core.closed:
            tell(done, closed_error())
        elif core.ready:
            act()
        elif len(self._parked) >= REDIS_WAITING_MAX:
            core.stats.overflowed += 1
            tell(done, StoreError(f"{REDIS_WAITING_MAX} requests wait for Redis at {core.settings.address} already"))
        else:
            self._parked.append((act, done, self.loop.call_at(deadline_s, self._expire)))
            if len(self._parked) == 1:
                core.start_preparing(self._prepared)

    def _prepared(self) -> None:
        # In another thread; the loop may be gone by now.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._unpark)

    def _unpark(self) -> None:
        parked, self._parked = self._parked, deque()
        ready = self._core.ready
        for act, done, timer in parked:
            timer.cancel()
            if ready:
                act()
            else:
                tell(done, self._core.not_ready())

    def _expire(self) -> None:
        now_s = self.loop.time()
        late: list[Landed] = []
        # They are in the order of their deadlines.
        while self._parked and self._parked[0][2].when() <= now_s:
            _, done, timer = self._parked.popleft()
            timer.cancel()
            late.append(done)
        self._core.stats.expired += len(late)
        for done in late:
            tell(done, self._core.not_ready())

    def close(self) -> None:
        """Close the connections of this loop; whoever waits is told."""
        self.closed = True
        self._unpark()
        # Whoever is told may go on, and must not find a server that has no lane yet.
        for lane in list(self._lanes.values()):
            lane.close()


class _Run:
    """An operation under way: each step is sent when all replies to the one before are there."""

    __slots__ = ("_deadline_s", "_done", "_missing", "_replies", "_side", "_steps")

    def __init__(self, side: LoopSide, steps: Steps[Any], done: Landed, deadline_s: float) -> None:
        self._side = side
        self._steps = steps
        self._done = done
        self._deadline_s = deadline_s
        self._replies: list[Any] = []
        self._missing = 0

    def advance(self, replies: Sequence[Any] | None) -> None:
        """Take the next step, or tell the result."""
        try:
            commands = next(self._steps) if replies is None else self._steps.send(replies)
        except StopIteration as end:
            tell(self._done, end.value)
        except Exception as error:  # noqa: BLE001
            # A StoreError, or what a rule set with a foreign spec brings about: the caller's to see.
            tell(self._done, error)
        else:
            self._replies = [None] * len(commands)
            self._missing = len(commands)
            until_s = self._side.undo_deadline_s(self._deadline_s) if isinstance(commands, Undo) else self._deadline_s
            for place, command in enumerate(commands):
                self._side.send(command, partial(self._land, place), until_s)

    def _land(self, place: int, reply: Any) -> None:
        self._replies[place] = reply
        self._missing -= 1
        if not self._missing:
            self.advance(self._replies)
