"""Whether a server keeps the hashes of the packed layout as small ones. Beyond its limits one takes four times the memory, and stays so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from sluicegate.bounds import REDIS_HASH_FIELDS_MIN, REDIS_HASH_VALUE_BYTES_MAX
from sluicegate.errors import StoreError
from sluicegate.stores.redis.link import ReplyError
from sluicegate.stores.redis.node import Node

__all__ = ["warn_of_hash_limits"]

_log = logging.getLogger("sluicegate.store")

_WANTED: Final = {
    b"hash-max-listpack-entries": REDIS_HASH_FIELDS_MIN,
    b"hash-max-listpack-value": REDIS_HASH_VALUE_BYTES_MAX,
}


def warn_of_hash_limits(nodes: Sequence[Node], deadline_us: int) -> None:
    """Log each limit of these servers that is too small. Blocks until the monotonic ``deadline_us``; a server that does not tell is passed over."""
    for node in nodes:
        try:
            replies = node.ask([(b"CONFIG", b"GET", name) for name in _WANTED], deadline_us)
        except StoreError:
            continue
        for (name, wanted), reply in zip(_WANTED.items(), replies, strict=True):
            found = _number_in(reply)
            if found is not None and found < wanted:
                _log.warning(
                    "Redis at %s has %s %d: set it to %d or more, else layout=packed takes more memory than it needs",
                    node.address,
                    name.decode(),
                    found,
                    wanted,
                )


def _number_in(reply: Any) -> int | None:
    """The value in a reply to CONFIG GET; None where the user may not ask, or the server has no such setting."""
    if isinstance(reply, ReplyError) or not isinstance(reply, list) or len(reply) < 2 or not reply[1].isdigit():
        return None
    return int(reply[1])
