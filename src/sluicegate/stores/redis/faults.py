"""What Redis answers instead of a decision, as this package's errors."""

from __future__ import annotations

from collections.abc import Iterable

from sluicegate.errors import StoreError

__all__ = ["check_handshake", "fault_of", "is_noscript", "is_readonly"]

# By the first word of the reply: what passes without anybody changing anything.
_TRANSIENT = frozenset(
    (
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
        "UNBLOCKED",
    )
)


def check_handshake(replies: Iterable[object], where: str) -> None:
    """Raise StoreError for the first reply that is an error: a wrong password, a database that is not there."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise fault_of(str(reply), where)


def is_noscript(reply: object) -> bool:
    """Whether a reply says that the server does not know the script, in whatever words around it."""
    return isinstance(reply, Exception) and "NOSCRIPT" in str(reply)


def is_readonly(reply: object) -> bool:
    """Whether a reply says that the server is a replica, or was made one."""
    return isinstance(reply, Exception) and str(reply).startswith("READONLY")


def fault_of(text: str, where: str) -> StoreError:
    """The StoreError for an error reply of the server at ``where``."""
    word = text.split(" ", 1)[0].removeprefix("-")
    return StoreError(f"Redis at {where} answers {text[:200]!r}", transient=word in _TRANSIENT)
