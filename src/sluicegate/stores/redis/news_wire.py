"""News as they go over the wire.

A message is the byte ``1``, which stands for this form, and eight bytes for each counter that may pass again: the beginning of the SHA-256 of its key
in the store, in which subjects are digests already. None of them: any counter may. Whoever does not understand a message leaves it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from sluicegate.bounds import REDIS_NEWS_NAMES_MAX
from sluicegate.stores.keys import redis_frame

__all__ = ["channel_of", "messages_of", "name_of", "names_in"]

_FORM: Final = b"1"
_NAME_BYTES: Final = 8
_FIELDS: Final = 5
"""So many fields a counter's prefix has, each with a colon behind it; see ``keys``."""


def channel_of(db: int) -> bytes:
    """The channel of a database; the channels of a server are for of all its databases."""
    return b"rl1:news:%d" % db


def name_of(key: str, texts: dict[str, str]) -> int:
    """The name of a counter: the first eight bytes of the SHA-256 of its key in the store, whose subjects are ``texts``."""
    fields = key.split(":", _FIELDS)
    if len(fields) <= _FIELDS:
        text = texts[key]
    else:
        subject = fields[_FIELDS]
        before, after = redis_frame(key[: len(key) - len(subject)])
        text = before + texts[subject] + after
    return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:_NAME_BYTES])


def messages_of(names: Iterable[int] | None) -> list[bytes]:
    """The messages that say these names, ``REDIS_NEWS_NAMES_MAX`` in each; None: the one that says all."""
    if names is None:
        return [_FORM]
    data = [name.to_bytes(_NAME_BYTES) for name in names]
    starts = range(0, len(data), REDIS_NEWS_NAMES_MAX)
    return [_FORM + b"".join(data[start : start + REDIS_NEWS_NAMES_MAX]) for start in starts]


def names_in(message: bytes) -> Sequence[int] | None:
    """The names in a message; None: any counter is meant. ValueError for what is no message of this form."""
    body = message[len(_FORM) :]
    if not message.startswith(_FORM) or len(body) % _NAME_BYTES:
        raise ValueError("no news of this form")
    if not body:
        return None
    return [int.from_bytes(body[at : at + _NAME_BYTES]) for at in range(0, len(body), _NAME_BYTES)]
