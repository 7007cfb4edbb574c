"""The thread that hears news: connects, connects again, and says when something may have been missed."""

from __future__ import annotations

import weakref
from random import Random
from typing import TYPE_CHECKING, Final

from sluicegate.bounds import (
    REDIS_NEWS_FORBIDDEN_US,
    REDIS_NEWS_LIFE_US,
    REDIS_NEWS_RETRY_FIRST_US,
    REDIS_NEWS_RETRY_MAX_US,
)
from sluicegate.clock import US_PER_MS, US_PER_S
from sluicegate.errors import StoreError
from sluicegate.stores.redis.news_link import NewsLink, Waker

if TYPE_CHECKING:
    from sluicegate.stores.redis.news import News

__all__ = ["Listener"]

_LOOK_US: Final = US_PER_S
"""How often a listener looks whether its server is still the one to listen to, and whether anybody still wants to hear."""


class Listener:
    """One listening thread's own. It holds its ``News`` weakly, so that a store that nobody uses any more ends without being closed.

    ``waker`` has it look at once whether it is still wanted.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_began_us",
        "_link",
        "_looked_us",
        "_messages",
        "_news",
        "_pause_us",
        "_problem",
        "_random",
        "_turn",
        "waker",
    )

    def __init__(self, news: weakref.ref[News]) -> None:
        """Raises OSError where no file descriptor is to be had."""
        self._news = news
        self.waker = Waker()
        self._link: NewsLink | None = None
        self._pause_us = 0
        self._turn = 0
        self._began_us = self._looked_us = 0
        self._asked = False
        self._messages: list[bytes] = []
        self._problem: OSError | None = None
        # Only spreads the processes that lost a server over time.
        self._random = Random()  # noqa: S311

    def run(self) -> None:
        """Listen until nobody wants to hear."""
        try:
            while self._turn_of():
                # Nothing is held here: whoever is collected as garbage is found to be so while this thread waits.
                self._wait()
        finally:
            self.abandon()
            news = self._news()
            if news is not None:
                news.gone(self)

    def _turn_of(self) -> bool:
        """Do what is to be done before something comes; False: nobody wants to hear."""
        news = self._news()
        if news is None or not news.wants(self):
            return False
        if self._link is not None:
            self._hear(news, self._link)
        else:
            self._connect(news)
        return True

    def _wait(self) -> None:
        """Wait until something comes, or it is time to connect."""
        if self._link is None:
            self.waker.wait(self._random.randint(self._pause_us // 2, self._pause_us) // US_PER_MS)
            return
        try:
            self._messages = self._link.listen(self.waker, _LOOK_US // US_PER_MS)
        except OSError as error:
            self._problem = error

    @property
    def connected(self) -> bool:
        """Whether the connection is there."""
        return self._link is not None

    def abandon(self) -> None:
        """Close what is open; nothing is sent."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self.waker.close()

    def _connect(self, news: News) -> None:
        core = news.core
        try:
            node = news.server(self._turn)
            now_us = core.clock.monotonic_us()
            self._link = NewsLink(node, news.channel, now_us + node.connect_us)
        except StoreError as error:
            self._later()
            if news.failed(error):
                self._pause_us = REDIS_NEWS_FORBIDDEN_US
            return
        core.stats.connects += 1
        self._began_us = self._looked_us = core.clock.monotonic_us()
        self._asked = False
        # Whatever was told before this moment was not heard.
        news.pass_on(None)

    def _hear(self, news: News, link: NewsLink) -> None:
        """Pass on what has come."""
        messages, self._messages = self._messages, []
        problem, self._problem = self._problem, None
        if messages:
            news.take(messages)
        try:
            if problem is not None:
                raise problem
            self._look(news, link, news.core.clock.monotonic_us())
        except OSError as error:
            self._link = None
            link.close()
            self._later()
            news.failed(StoreError(f"news of Redis at {link.address} are cut ({error})"))

    def _look(self, news: News, link: NewsLink, now_us: int) -> None:
        """Once in a while: is the server alive, and is it still the one? Raises OSError where it is not alive."""
        if now_us - self._looked_us < _LOOK_US:
            return
        self._looked_us = now_us
        if now_us - self._began_us > REDIS_NEWS_LIFE_US:
            self._pause_us = self._turn = 0
        silent_us = now_us - link.heard_us
        if silent_us > 2 * REDIS_NEWS_LIFE_US:
            raise TimeoutError("it does not answer")
        if silent_us < REDIS_NEWS_LIFE_US:
            self._asked = False
        elif not self._asked:
            self._asked = True
            link.ask_for_life()
        if not news.is_good(link.address):
            self._link = None
            link.close()

    def _later(self) -> None:
        """The next attempt is after a pause, and with another server where there are several."""
        self._turn += 1
        self._pause_us = min(max(2 * self._pause_us, REDIS_NEWS_RETRY_FIRST_US), REDIS_NEWS_RETRY_MAX_US)
