"""The secret under which subjects become digests, and how all processes come to use the same one.

It is kept in the store under one key, beside the counters. Whoever finds no secret there puts one in (SET NX GET: one of
several wins and all learn which); a flush deletes it, so it is put back every ``REDIS_SECRET_CHECK_US`` on the way of a decision.
A process that started in between may have put in another: then all take over that one, and counters start anew, as they did by
the flush.

Where the operator gives the secret, only its fingerprint is stored, and a different one is an error: two secrets on one store
would double every limit.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Final

from sluicegate.bounds import REDIS_SECRET_CHECK_US
from sluicegate.errors import StoreError
from sluicegate.stores.keys import BucketSubjects, PlainSubjects, SubjectDigests
from sluicegate.stores.redis.layout import PLAIN_LAYOUT, Layout
from sluicegate.stores.redis.riders import NEVER_US, Words

__all__ = ["SECRET_KEY", "Subjects"]

SECRET_KEY: Final = b"rl1:key_secret"

_MADE, _GIVEN = b"made:", b"given:"


class Subjects:
    """``texts[subject]`` is what stands in a key. Safe from any thread; ``texts`` may be replaced at any time.

    Of the packed layout they are ``BucketSubjects``. ``before``: the same in the layout ``moving_from``, where counters may still be; None
    where there is none. A ``Rider``: ``ready`` says whether the secret is known; decisions are made only then. With plain subjects it is never due.
    """

    __slots__ = ("_mine", "before", "due_us", "layout", "moving_from", "ready", "texts")

    every_us = REDIS_SECRET_CHECK_US
    key = SECRET_KEY

    def __init__(
        self,
        *,
        plain: bool,
        secret: bytes | None,
        layout: Layout = PLAIN_LAYOUT,
        moving_from: Layout | None = None,
    ) -> None:
        self.layout = layout
        self.moving_from = moving_from
        self.texts: dict[str, str] = {}
        self.before: dict[str, str] | None = None
        self._mine = b""
        self.due_us = 0
        self.ready = False
        if plain:
            self.texts, self.ready, self.due_us = PlainSubjects(), True, NEVER_US
        elif secret is not None:
            self._digest_under(secret)
            self._mine = _GIVEN + sha256(b"sluicegate key_secret " + secret).hexdigest()[:16].encode()
        else:
            self._mine = _MADE + secrets.token_hex(16).encode()

    def _digest_under(self, secret: bytes) -> None:
        self.before = None if self.moving_from is None else _digests(secret, self.moving_from)
        self.texts = _digests(secret, self.layout)

    def words(self) -> Words:
        """The command that keeps the secret that is there, else puts ours in; it replies with what was there."""
        return (b"SET", SECRET_KEY, self._mine, b"NX", b"GET")

    def learn(self, reply: object, now_us: int) -> None:
        """Take note of the reply to ``words``.

        Raises StoreError where the store is used with another given secret, and is not ready from then on: no decision is made
        under keys that others do not use.
        """
        kept = reply if isinstance(reply, bytes) else self._mine
        if kept != self._mine and (kept.startswith(_GIVEN) or self._mine.startswith(_GIVEN)):
            self.ready = False
            raise StoreError(
                "this Redis is used with another key_secret: all processes need the same one (its fingerprint is in the "
                f"key {SECRET_KEY.decode()!r}; delete that after a change of the secret, and all counters start anew)",
                transient=False,
            )
        if kept != self._mine or not self.ready:
            if kept.startswith(_MADE):
                self._digest_under(kept.removeprefix(_MADE))
            elif not kept.startswith(_GIVEN):
                self.ready = False
                raise StoreError(f"the key {SECRET_KEY.decode()!r} holds no secret of this program", transient=False)
            self._mine = kept
            self.ready = True
        self.due_us = now_us + REDIS_SECRET_CHECK_US


def _digests(secret: bytes, layout: Layout) -> SubjectDigests:
    return BucketSubjects(secret, layout.tag, layout.buckets) if layout.packed else SubjectDigests(secret)
