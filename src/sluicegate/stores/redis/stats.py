"""What a Redis store counts about itself."""

from __future__ import annotations

__all__ = ["RedisStats"]


class RedisStats:
    """Plain integers, readable at any time; under threads they may miss a few.

    ``calls``: commands that were sent. ``batches``: script calls that carried requests of callbacks and coroutines;
    ``batched``: the requests in them. ``loads``: scripts sent in full because the server did not know them; growth means that its
    cache is flushed or that it restarts. ``moved``: commands sent again, to the server that another one named. ``lost``:
    exchanges without a reply (timeout, connection closed). ``errors``: error replies that reached a caller; an unreadable
    key is none, it fails its request within a reply. ``connects``: connections made. ``expired``: requests that reached their
    deadline before they were sent. ``overflowed``: requests that failed because ``REDIS_WAITING_MAX`` were waiting. ``breaker_opens``:
    servers that were given up. ``probes``: how often one was tried then. ``failed_fast``: commands not sent because their server
    was down. ``refreshes``: looks at the map of a cluster. ``undone``: charges given back because another server refused the
    same request; ``undo_lost``: those of which that failed. ``news_sent``, ``news_heard``: messages between processes, and ``news_ignored``: those
    heard that were none of this program; ``news_failed``: how often one could not be sent, or the connection for them not be had, or was cut.
    """

    __slots__ = (
        "batched",
        "batches",
        "breaker_opens",
        "calls",
        "connects",
        "errors",
        "expired",
        "failed_fast",
        "loads",
        "lost",
        "moved",
        "news_failed",
        "news_heard",
        "news_ignored",
        "news_sent",
        "overflowed",
        "probes",
        "refreshes",
        "undo_lost",
        "undone",
    )

    def __init__(self) -> None:
        self.batched = 0
        self.batches = 0
        self.breaker_opens = 0
        self.calls = 0
        self.connects = 0
        self.errors = 0
        self.expired = 0
        self.failed_fast = 0
        self.loads = 0
        self.lost = 0
        self.moved = 0
        self.news_failed = 0
        self.news_heard = 0
        self.news_ignored = 0
        self.news_sent = 0
        self.overflowed = 0
        self.probes = 0
        self.refreshes = 0
        self.undo_lost = 0
        self.undone = 0

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}
