"""What Redis answers instead of a decision, as this package's errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluicegate.errors import StoreError

__all__ = ["CONNECT_ANEW", "OF_THE_SERVER", "ServerFault", "check_handshake", "fault_of"]

OF_THE_SERVER: Final = frozenset(
    (
        "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOAUTH", "NOREPLICAS", "OOM", "READONLY",
    )
)  # fmt: skip
"""First words of replies that speak of the server and not of one key: the next call would meet the same."""

CONNECT_ANEW: Final = frozenset(("NOAUTH", "READONLY"))
"""First words of replies after which a connection is not used again: a new one signs in, and may lead to another server."""

_TRANSIENT: Final = (OF_THE_SERVER - {"NOAUTH"}) | {"ASK", "MOVED", "TRYAGAIN", "UNBLOCKED"}
"""What passes without anybody changing anything."""


_NO_RIGHT: Final = ("executing the script can't run this command", "ACL failure in script")
"""How Redis and Valkey say that the user may not run a command which a script has called."""


class ServerFault(StoreError):
    """An error reply. ``code``: its first word, as ``TRYAGAIN``. Nothing was charged by the command that got it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, transient=code in _TRANSIENT)
        self.code = code


def check_handshake(replies: Iterable[object], where: str) -> None:
    """Raise StoreError for the first reply that is an error: a wrong password, a database that is not there."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise fault_of(str(reply), where)


def fault_of(text: str, where: str) -> ServerFault:
    """The error for an error reply of the server at ``where``."""
    code = text.split(" ", 1)[0].removeprefix("-")
    # Such a reply names neither the command nor the right.
    hint = (
        "; the store's user lacks a right that a script needs (Keys in docs/redis.md)"
        if any(words in text for words in _NO_RIGHT)
        else ""
    )
    return ServerFault(code, f"Redis at {where} answers {text[:200]!r}{hint}")
