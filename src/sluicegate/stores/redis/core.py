"""What the synchronous and the asynchronous side of a Redis store have in common. Nothing here waits for the network on a caller's behalf."""

from __future__ import annotations

from random import Random
from typing import Any, Protocol

from sluicegate.bounds import REDIS_PREPARE_PAUSE_US, REDIS_RESENDS_MAX, REDIS_WARM_MS
from sluicegate.clock import US_PER_MS, US_PER_S, Clock, SystemClock
from sluicegate.errors import StoreError
from sluicegate.stores.redis.beats import Beats
from sluicegate.stores.redis.errand import Errand
from sluicegate.stores.redis.faults import OF_THE_SERVER, ServerFault, fault_of
from sluicegate.stores.redis.hash_limits import warn_of_hash_limits
from sluicegate.stores.redis.link import Link, ReplyError, packed
from sluicegate.stores.redis.news import News
from sluicegate.stores.redis.node import Node, Surroundings
from sluicegate.stores.redis.packing import Packing
from sluicegate.stores.redis.riders import NEVER_US, Rider, Riders, Words
from sluicegate.stores.redis.secret import Subjects
from sluicegate.stores.redis.settings import RedisSettings
from sluicegate.stores.redis.stats import RedisStats
from sluicegate.stores.redis.topology import topology_of

__all__ = ["Core", "Sent", "closed_error", "unsendable"]


class Sent(Protocol):
    """A command under way, as ``Core.after_error`` sees it. ``node`` None: to be found by ``group``."""

    group: int
    node: Node | None
    asking: bool
    in_full: bool
    resends: int


class Core:
    """The parts of one store. Safe from any thread and event loop; ``closed`` is final."""

    def __init__(
        self, settings: RedisSettings, clock: Clock | None, time_source: Clock | None, *, counted: bool = True
    ) -> None:
        self.settings = settings
        self.stats = RedisStats()
        self.clock = SystemClock()
        """Of deadlines and intervals."""
        self.timeout_us = settings.timeout_ms * US_PER_MS
        self.subjects = Subjects(
            plain=settings.plain_keys,
            secret=settings.key_secret,
            layout=settings.layout,
            moving_from=settings.moving_from,
        )
        self.beats = Beats(counted=counted)
        self.riders = Riders((self.subjects, self.beats))
        self.packing = Packing(self.subjects, clock or SystemClock(), settings.address, time_source)
        # Only spreads probes over time.
        surroundings = Surroundings(self.clock, Random(), self.stats, self._greet, self.riders.hurry)  # noqa: S311
        self.router, self.calls = topology_of(settings, self.subjects, self.packing, surroundings)
        self.closed = False
        self.news = News(self)
        self._preparing = Errand("prepare", self._prepare)
        self._beating = Errand("beat", self._send_riders)
        self._problem: StoreError | None = None
        self._problem_us = 0
        self.problem_since_us = 0
        """When ``problem`` came up, by the monotonic clock."""

    @property
    def ready(self) -> bool:
        """Whether decisions can be packed and sent: the secret and the servers are known."""
        return self.subjects.ready and self.router.ready

    @property
    def problem(self) -> str | None:
        """Why the store is not ready, as far as that is known; None where it is."""
        return None if self.ready or self._problem is None else str(self._problem)

    # ------------------------------------------------------------------ what must be known first

    def await_ready(self, deadline_us: int, *, again: bool = False) -> None:
        """Block until the store is ready, at most until the monotonic ``deadline_us``. Raises StoreError.

        A store that could not be made ready is not tried again for ``REDIS_PREPARE_PAUSE_US``, except ``again``.
        """
        self.start_preparing(None, again=again)
        self._preparing.wait((deadline_us - self.clock.monotonic_us()) / US_PER_S)
        if not self.ready:
            raise self.not_ready()

    def start_preparing(self, ended: Any, *, again: bool = False) -> None:
        """Have the store made ready; ``ended`` is called when that was tried, at once where it was tried in vain lately."""
        if self.closed or (not again and self.clock.monotonic_us() - self._problem_us < REDIS_PREPARE_PAUSE_US):
            if ended is not None:
                ended()
            return
        self._preparing.start(ended)

    def not_ready(self) -> StoreError:
        """Why the store is not ready, as an error of its own for each caller."""
        if self.closed:
            return closed_error()
        problem = self._problem
        if problem is None:
            return StoreError(f"Redis at {self.settings.address} is not ready in time")
        return StoreError(str(problem), transient=problem.transient)

    def _prepare(self) -> None:
        """Learn what decisions need to be packed and sent. In a thread of its own."""
        deadline_us = self.clock.monotonic_us() + max(self.timeout_us, REDIS_WARM_MS * US_PER_MS)
        try:
            if not self.router.ready:
                self.router.prepare(deadline_us)
            if not self.subjects.ready:
                self._send_alone(self.subjects, deadline_us)
                if self.settings.layout.packed:
                    warn_of_hash_limits(self.router.nodes(), deadline_us)
            self._problem = None
        except StoreError as error:
            self._problem_us = self.clock.monotonic_us()
            if self._problem is None:
                self.problem_since_us = self._problem_us
            self._problem = error

    # ------------------------------------------------------------------ riders

    def riders_for(self, node: Node) -> list[Rider]:
        """The riders to be sent along with commands to this server."""
        now_us = self.clock.monotonic_us()
        self.router.tick(now_us)
        self.news.tick()
        found = self.riders.take(now_us, lambda key: self._is_at(node, key))
        if self.riders.left_behind(now_us):
            self._beating.start()
        return found

    def _is_at(self, node: Node, key: bytes) -> bool:
        try:
            return self.router.node_of(self.router.group_of_key(key)) is node
        except StoreError:
            # Nobody is known to have it now.
            return False

    def _greet(self, node: Node, link: Link, deadline_us: int) -> None:
        """Learn the key secret of a server that has returned, before it decides. See ``node.Greet``."""
        subjects = self.subjects
        if subjects.due_us < NEVER_US and self._is_at(node, subjects.key):
            (reply,) = link.exchange(packed([subjects.words()]), 1, deadline_us, self.clock)
            problem = self.learn(subjects, reply)
            if problem is not None:
                raise problem

    def learn(self, rider: Rider, reply: object) -> StoreError | None:
        """Give a rider its reply; returns what fails the decisions that were sent with it."""
        if isinstance(reply, ReplyError):
            # It is due again soon; what the reply means for decisions, they are told themselves.
            self.stats.errors += 1
            return None
        try:
            rider.learn(reply, self.clock.monotonic_us())
        except StoreError as error:
            return error
        self.riders.settle()
        return None

    def send_riders(self, ended: Any) -> None:
        """Have the riders sent that are due, without a decision; ``ended`` is called when that was tried."""
        self._beating.start(ended)

    def _send_riders(self) -> None:
        now_us = self.clock.monotonic_us()
        self.router.tick(now_us)
        self.news.tick()
        for rider in self.riders.take(now_us, lambda _: True):
            try:
                self._send_alone(rider, now_us + REDIS_WARM_MS * US_PER_MS)
            except StoreError:
                # An absent store is no error here: whoever decides is told.
                continue

    def _send_alone(self, rider: Rider, deadline_us: int) -> None:
        reply = self.ask(rider.key, rider.words(), deadline_us)
        problem = self.learn(rider, reply)
        if problem is not None:
            raise problem

    def ask(self, key: bytes, words: Words, deadline_us: int) -> Any:
        """The reply of the server of ``key`` to a plain command. Blocks, for errands only; raises StoreError, also for an error reply."""
        group = self.router.group_of_key(key)
        for _ in range(REDIS_RESENDS_MAX):
            node = self.router.node_of(group)
            refusal = node.refusal()
            if refusal is not None:
                raise refusal
            (reply,) = node.ask([words], deadline_us)
            if not isinstance(reply, ReplyError):
                return reply
            move = self.router.after_error(node, group, str(reply))
            if move is None:
                raise fault_of(str(reply), node.address)
        raise StoreError(f"Redis at {self.settings.address} moves its keys too often")

    # ------------------------------------------------------------------ error replies

    def after_error(self, sent: Sent, node: Node, reply: ReplyError, began_us: int) -> ServerFault | None:
        """What an error reply means: the error of the caller, or None where ``sent`` says how it is to be sent again.

        Only what the server certainly did not do is sent again: a script it does not know, a key it does not have.
        """
        text = str(reply)
        if "NOSCRIPT" in text and not sent.in_full:
            self.stats.loads += 1
            sent.in_full, sent.node = True, node
            return None
        fault = fault_of(text, node.address)
        if fault.code in OF_THE_SERVER:
            node.failed(began_us, str(fault))
        move = self.router.after_error(node, sent.group, text)
        if move is not None and sent.resends < REDIS_RESENDS_MAX:
            self.stats.moved += 1
            sent.resends += 1
            sent.node, sent.asking = move
            return None
        self.stats.errors += 1
        return fault

    def close(self) -> None:
        """Close what threads use; event loops close their own."""
        self.news.close()
        self.closed = True
        self.router.close()


def closed_error() -> StoreError:
    """What every call gets after ``close``."""
    return StoreError("the Redis store is closed", transient=False)


def unsendable(problem: Exception) -> StoreError:
    """What the caller of a request gets that cannot be made into a command; nothing was sent."""
    return (
        problem
        if isinstance(problem, StoreError)
        else StoreError(f"the request cannot be sent: {problem}", transient=False)
    )
