"""How many processes use a store: each says every second that it is here.

All processes of one database are counted, whatever their namespace: a limit that is divided by too many admits too little, never
too much. A process is known by a number it draws when it starts, and a forked child by one of its own.
"""

from __future__ import annotations

import secrets
from typing import Final

from sluicegate.bounds import REDIS_BEAT_TTL_MS, REDIS_BEAT_US, REDIS_NODES_MEMORY_US
from sluicegate.stores.locks import Locked
from sluicegate.stores.redis.riders import NEVER_US, Words
from sluicegate.stores.redis.scripts import BEAT

__all__ = ["NODES_KEY", "Beats"]

NODES_KEY: Final = b"rl1:nodes"

_ID_BYTES = 8


class _Process(Locked):
    """This process, whatever the number of its stores."""

    __slots__ = ("name",)

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self.name = secrets.token_hex(_ID_BYTES)


_PROCESS: Final = _Process()


class Beats:
    """The heartbeat of this process, a ``Rider``. ``nodes``: the most processes that were seen lately, >= 1.

    ``counted`` False: this process says nothing, for one that admits nobody, so that the shares of the others stay as large as they are.
    A number is kept for ``REDIS_NODES_MEMORY_US`` at least and twice that at most; while nothing is heard of the store, for ever.
    """

    __slots__ = ("_before", "_now", "_since_us", "due_us")

    every_us = REDIS_BEAT_US
    key = NODES_KEY

    def __init__(self, *, counted: bool = True) -> None:
        self.due_us = 0 if counted else NEVER_US
        # The most of this span of time and of the one before it, each as long as the memory.
        self._now = self._before = 1
        self._since_us = 0

    @property
    def nodes(self) -> int:
        return max(self._now, self._before)

    def words(self) -> Words:
        return (b"EVAL", BEAT.text, b"1", NODES_KEY, _PROCESS.name, str(REDIS_BEAT_TTL_MS))

    def learn(self, reply: object, now_us: int) -> None:
        """Take note of how many there are."""
        self.due_us = now_us + REDIS_BEAT_US
        if not isinstance(reply, int):
            return
        if now_us - self._since_us >= REDIS_NODES_MEMORY_US:
            self._before, self._now, self._since_us = self._now, 1, now_us
        self._now = max(self._now, reply, 1)
