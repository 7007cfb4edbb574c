"""News between the processes that use a store: counters that may pass again, sooner than was said before.

What a process tells is kept for a moment, put together and sent by a thread that ends when nothing is left; a caller never waits. What the others
tell is heard by a ``Listener``. All of it is an acceleration: whatever is lost, or forbidden by the rights of the store's user, only delays what is
found out by asking.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from sluicegate.bounds import (
    REDIS_NEWS_FORBIDDEN_US,
    REDIS_NEWS_PAUSE_MAX_US,
    REDIS_NEWS_PAUSE_MIN_US,
    REDIS_NEWS_PENDING_MAX,
)
from sluicegate.clock import US_PER_MS, US_PER_S
from sluicegate.errors import StoreError
from sluicegate.stores.base import Heard
from sluicegate.stores.locks import Locked
from sluicegate.stores.redis.background import start_thread
from sluicegate.stores.redis.faults import ServerFault, fault_of
from sluicegate.stores.redis.link import ReplyError
from sluicegate.stores.redis.news_listener import Listener
from sluicegate.stores.redis.news_wire import channel_of, messages_of, name_of, names_in
from sluicegate.stores.redis.node import Node

if TYPE_CHECKING:
    from sluicegate.stores.redis.core import Core

__all__ = ["News"]

_log = logging.getLogger("sluicegate.store")

_FORBIDDEN: Final = "NOPERM"
"""First word of replies that stay what they are until an operator changes something."""


class News(Locked):
    """The news of one store, a part of its ``Core``. Safe from any thread; a forked child listens anew when its store is used."""

    __slots__ = (
        "core",
        "_heard",
        "_hurried",
        "_listener",
        "_may_say_us",
        "_pending",
        "_place",
        "_said_us",
        "_sending",
        "_texts",
        "_told",
        "_turn",
        "channel",
        "ended",
    )

    def __init__(self, core: Core) -> None:
        self.core = core
        self._heard: tuple[Heard, ...] = ()
        self._told = False
        self._texts: object = None
        # Only spreads the processes over the servers of a cluster.
        self._place = Random().randrange(1 << 16)  # noqa: S311
        self.channel = channel_of(core.settings.db)
        self.ended = False
        self._listener: Listener | None = None
        super().__init__()
        _all.add(self)

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self._turn = threading.Condition(self._lock)
        # A forked child has none of the threads. What was pending is told by the parent.
        self._pending: dict[int, None] | None = {}
        """What is to be told; None: that any counter may pass."""
        self._sending = self._hurried = False
        self._said_us = self._may_say_us = 0
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.abandon()

    # ------------------------------------------------------------------ telling

    def name(self, key: str) -> int:
        """See ``NewsStore.news_name``; 0 while the secret is not known."""
        subjects = self.core.subjects
        return name_of(key, subjects.texts) if subjects.ready else 0

    def publish(self, keys: Iterable[str]) -> None:
        """See ``NewsStore.publish``."""
        core = self.core
        if self.ended or core.closed or not core.subjects.ready:
            return
        texts = core.subjects.texts
        with self._lock:
            for key in keys:
                pending = self._pending
                if pending is None:
                    break
                pending[name_of(key, texts)] = None
                if len(pending) > REDIS_NEWS_PENDING_MAX:
                    self._pending = None
            if self._sending or self._pending == {}:
                return
            self._sending = True
        start_thread("news", self._send, self._unsent)

    def flush(self, timeout_s: float) -> None:
        """Have what is pending sent now; wait for it, no longer than ``timeout_s``."""
        with self._lock:
            self._hurried = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: not self._sending, timeout_s)
            self._hurried = False

    @property
    def telling(self) -> bool:
        """Whether something is to be sent yet."""
        return self._sending

    def _send(self) -> None:
        """Send until nothing is pending. In a thread of its own."""
        try:
            while (names := self._next()) != {}:
                self._say(messages_of(names))
        except BaseException:
            self._unsent()
            raise

    def _next(self) -> dict[int, None] | None:
        """What is to be sent next, after a pause; nothing, and the thread ends."""
        clock = self.core.clock
        with self._lock:
            left_us = self._said_us + self._pause_us() - clock.monotonic_us()
            if self._said_us and left_us > 0 and not self._hurried:
                self._turn.wait(left_us / US_PER_S)
            names, self._pending = self._pending, {}
            self._said_us = clock.monotonic_us()
            if names == {}:
                self._unsent()
            return names

    def _unsent(self) -> None:
        with self._lock:
            self._sending = False
            self._turn.notify_all()

    def _pause_us(self) -> int:
        """Between two messages of one process: longer where there are many, who all hear it."""
        nodes = max(self.core.beats.nodes, self.core.settings.nodes_min)
        return min(max(nodes * US_PER_MS, REDIS_NEWS_PAUSE_MIN_US), REDIS_NEWS_PAUSE_MAX_US)

    def _say(self, messages: Sequence[bytes]) -> None:
        core, stats = self.core, self.core.stats
        now_us = core.clock.monotonic_us()
        try:
            if now_us < self._may_say_us:
                return
            node = self.server(0)
            refusal = node.refusal()
            if refusal is not None:
                raise refusal
            replies = node.ask([(b"PUBLISH", self.channel, message) for message in messages], now_us + node.connect_us)
            for reply in replies:
                if isinstance(reply, ReplyError):
                    raise fault_of(str(reply), node.address)
            stats.news_sent += len(messages)
        except StoreError as error:
            if self.failed(error):
                self._may_say_us = now_us + REDIS_NEWS_FORBIDDEN_US

    # ------------------------------------------------------------------ hearing

    def subscribe(self, heard: Heard) -> Callable[[], None]:
        """See ``NewsStore.subscribe``."""
        mine = partial(heard)

        def end() -> None:
            with self._lock:
                self._heard = tuple(one for one in self._heard if one is not mine)
            self._look()

        with self._lock:
            self._heard = (*self._heard, mine)
        self.tick()
        return end

    @property
    def deaf(self) -> bool:
        """Somebody wants to hear, and there is no connection to hear by."""
        listener = self._listener
        return bool(self._heard) and (listener is None or not listener.connected)

    def tick(self) -> None:
        """Called about once a second while the store is used: listen where somebody wants to hear and nobody listens, as after a fork."""
        if self._listener is not None or not self._heard:
            return
        with self._lock:
            if self.ended or self._listener is not None:
                return
            try:
                listener = Listener(weakref.ref(self))
            except OSError:
                # No file descriptor is left; the next tick tries again.
                return
            self._listener = listener
        start_thread("news", listener.run, partial(self.gone, listener))

    def wants(self, listener: Listener) -> bool:
        """Whether this listener is to go on; it ends where not, and another one may begin at once."""
        with self._lock:
            if self._listener is listener and self._heard and not self.ended:
                return True
            self.gone(listener)
            return False

    def gone(self, listener: Listener) -> None:
        """A listener has ended."""
        with self._lock:
            if self._listener is listener:
                self._listener = None

    def server(self, turn: int) -> Node:
        """A server to tell or hear news; in a cluster all pass on what one hears. Another one in each ``turn``. Raises StoreError where none is known."""
        core = self.core
        if not core.ready or core.closed:
            core.start_preparing(None)
            raise core.not_ready()
        nodes = core.router.nodes()
        good = [node for node in nodes if node.breaker.closed] or nodes
        return good[(self._place + turn) % len(good)]

    def is_good(self, address: str) -> bool:
        """Whether the server at this address is still one to listen to."""
        nodes = self.core.router.nodes()
        closed = [node.address for node in nodes if node.breaker.closed]
        return address in (closed or [node.address for node in nodes])

    def take(self, messages: Sequence[bytes]) -> None:
        """Pass on what was heard. Messages of another form are left alone."""
        stats = self.core.stats
        stats.news_heard += len(messages)
        if self.core.subjects.texts is not self._texts:
            # Names are digests under the secret: by another one, what is known here has other names.
            self.pass_on(None)
        for message in messages:
            try:
                names = names_in(message)
            except ValueError:
                stats.news_ignored += 1
                continue
            self.pass_on(names)

    def pass_on(self, names: Sequence[int] | None) -> None:
        """Tell all who subscribed."""
        if names is None:
            self._texts = self.core.subjects.texts
        for heard in self._heard:
            try:
                heard(names)
            except Exception:  # noqa: BLE001
                # A fault of theirs must not make everybody deaf.
                _log.exception("news could not be passed on")

    def failed(self, error: StoreError) -> bool:
        """Take note that news could not be told or heard; True where that will not pass by itself, which the log says once."""
        self.core.stats.news_failed += 1
        if not (isinstance(error, ServerFault) and error.code == _FORBIDDEN):
            return False
        if not self._told:
            self._told = True
            _log.warning(
                "news between processes are off: the store's user needs the rights +publish +subscribe &rl1:*; "
                "without them a client that was given something back is refused for a second longer (%s)",
                error,
            )
        return True

    def close(self) -> None:
        """Listen no more, and tell nothing more."""
        self.ended = True
        self._look()

    def _look(self) -> None:
        listener = self._listener
        if listener is not None:
            listener.waker.wake()


_all: weakref.WeakSet[News] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """End all listeners, before the program waits for the threads of ``background``."""
    for news in list(_all):
        news.close()
