"""Bounded memos of small pure functions that every request needs; a hit is one dict lookup in C."""

from __future__ import annotations

from sluicegate.bounds import (
    HEADER_NAME_CHARS_MAX,
    HEADER_NAMES_MEMO_MAX,
    IDENTITY_BYTES_MAX,
    IDENTITY_MEMO_MAX,
    IP_MEMO_MAX,
)
from sluicegate.rules.identity.addresses import canonical_ip
from sluicegate.rules.identity.stats import IdentityStats

__all__ = ["HeaderNames", "IdentityTexts", "PeerAddresses"]


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


class IdentityTexts(dict[bytes, "str | None"]):
    """A verified header value -> the identity in it; None where it is empty, too long or not printable UTF-8."""

    __slots__ = ("_stats",)

    def __init__(self, stats: IdentityStats) -> None:
        self._stats = stats

    def __missing__(self, raw: bytes) -> str | None:
        value = raw.strip(b" \t")
        if len(value) > IDENTITY_BYTES_MAX:
            self._stats.value_too_long += 1
            return None
        try:
            text = value.decode()
        except UnicodeDecodeError:
            self._stats.value_malformed += 1
            return None
        if not text.isprintable():
            self._stats.value_malformed += 1
            return None
        if len(raw) <= IDENTITY_BYTES_MAX:
            if len(self) >= IDENTITY_MEMO_MAX:
                self.clear()
            self[raw] = text or None
        return text or None
