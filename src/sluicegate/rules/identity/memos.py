"""Bounded memos of small pure functions that every request needs; a hit is one dict lookup in C."""

from __future__ import annotations

from sluicegate.bounds import HEADER_NAME_CHARS_MAX, HEADER_NAMES_MEMO_MAX, IP_MEMO_MAX
from sluicegate.rules.identity.addresses import canonical_ip

__all__ = ["HeaderNames", "PeerAddresses"]


class HeaderNames(dict[bytes, "str | None"]):
    """A header name as received -> its lower-case form, or None where nobody needs that header."""

    __slots__ = ("_needed",)

    def __init__(self, needed: frozenset[str] | None) -> None:
        """``needed`` None: every header is."""
        self._needed = needed

    def __missing__(self, name: bytes) -> str | None:
        lower = name.lower().decode("latin-1")
        found = lower if self._needed is None or lower in self._needed else None
        if len(name) <= HEADER_NAME_CHARS_MAX:
            if len(self) >= HEADER_NAMES_MEMO_MAX:
                self.clear()
            self[name] = found
        return found


class PeerAddresses(dict[str, "str | None"]):
    """A peer's address as the socket gives it -> its canonical form, or None for what is no address."""

    __slots__ = ()

    def __missing__(self, text: str) -> str | None:
        try:
            address = canonical_ip(text)
        except ValueError:
            return None
        if len(self) >= IP_MEMO_MAX:
            self.clear()
        self[text] = address
        return address
