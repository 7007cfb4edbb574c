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
from sluicegate.stores.keys import PlainSubjects, SubjectDigests

__all__ = ["SECRET_KEY", "Subjects"]

SECRET_KEY: Final = b"rl1:key_secret"

_MADE, _GIVEN = b"made:", b"given:"


class Subjects:
    """``texts[subject]`` is what stands in a key. Safe from any thread; ``texts`` may be replaced at any time.

    ``due`` says whether ``command`` must be sent before or with the next decision, and its reply given to ``learn``.
    """

    __slots__ = ("_check_us", "_mine", "ready", "texts")

    def __init__(self, *, plain: bool, secret: bytes | None) -> None:
        self.texts: dict[str, str] = {}
        self._mine = b""
        self._check_us = 0
        self.ready = False
        if plain:
            self.texts, self.ready, self._check_us = PlainSubjects(), True, 1 << 62
        elif secret is not None:
            self.texts = SubjectDigests(secret)
            self._mine = _GIVEN + sha256(b"sluicegate key_secret " + secret).hexdigest()[:16].encode()
        else:
            self._mine = _MADE + secrets.token_hex(16).encode()

    def due(self, now_us: int) -> bool:
        """Whether the secret was not checked lately; ``now_us`` is monotonic."""
        return now_us >= self._check_us

    @property
    def command(self) -> tuple[bytes, ...]:
        """Keeps the secret that is there, else puts ours in; replies with what was there."""
        return (b"SET", SECRET_KEY, self._mine, b"NX", b"GET")

    def learn(self, found: object, now_us: int) -> None:
        """Take note of the reply to ``command``. Raises StoreError where the store is used with another given secret."""
        kept = found if isinstance(found, bytes) else self._mine
        if kept != self._mine and (kept.startswith(_GIVEN) or self._mine.startswith(_GIVEN)):
            raise StoreError(
                "this Redis is used with another key_secret: all processes need the same one (its fingerprint is in the "
                f"key {SECRET_KEY.decode()!r}; delete that after a change of the secret, and all counters start anew)",
                transient=False,
            )
        if kept != self._mine or not self.ready:
            if kept.startswith(_MADE):
                self.texts = SubjectDigests(kept.removeprefix(_MADE))
            elif not kept.startswith(_GIVEN):
                raise StoreError(f"the key {SECRET_KEY.decode()!r} holds no secret of this program", transient=False)
            self._mine = kept
            self.ready = True
        self._check_us = now_us + REDIS_SECRET_CHECK_US
