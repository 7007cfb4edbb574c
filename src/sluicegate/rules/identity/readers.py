"""One reader per source of identity: from the header lines of a request to a place in its facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluicegate.bounds import IDENTITY_BYTES_MAX
from sluicegate.rules.identity.keys import KnownKeys
from sluicegate.rules.identity.memos import IdentityTexts
from sluicegate.rules.identity.stats import IdentityStats
from sluicegate.rules.identity.tokens import TokenVerifier

__all__ = ["Found", "Reader", "claims_reader", "header_reader", "key_reader"]

Found = dict[str, bytes]
"""Lower-case header name -> its one value."""

Reader = Callable[[Found, bool, list[str | None]], None]
"""``reader(found, trusted, identity)`` puts what is verified into its places of ``identity`` and counts what is not."""

_BEARER = b"bearer "


def header_reader(header: str, place: int, stats: IdentityStats) -> Reader:
    """A header, believed from trusted peers."""
    texts = IdentityTexts(stats)

    def read(found: Found, trusted: bool, identity: list[str | None]) -> None:
        raw = found.get(header)
        if raw is None:
            return
        if trusted:
            identity[place] = texts[raw]
        else:
            stats.header_untrusted += 1

    return read


def key_reader(header: str, keys: KnownKeys, place: int, stats: IdentityStats) -> Reader:
    """A known key, believed from everybody; its name is the identity."""

    def read(found: Found, _trusted: bool, identity: list[str | None]) -> None:
        raw = found.get(header)
        key = None if raw is None else _credential(raw, header)
        if not key:
            return
        if len(key) > IDENTITY_BYTES_MAX:
            stats.value_too_long += 1
            return
        name = keys.name_of(key)
        if name is None:
            stats.key_unknown += 1
        identity[place] = name

    return read


def claims_reader(verifier: TokenVerifier, places: Sequence[tuple[str, int]]) -> Reader:
    """Claims of one verified token, believed from everybody."""
    header = verifier.config.header

    def read(found: Found, _trusted: bool, identity: list[str | None]) -> None:
        raw = found.get(header)
        token = None if raw is None else _credential(raw, header)
        if not token:
            return
        claims = verifier.claims(token)
        for claim, place in places:
            identity[place] = claims.get(claim)

    return read


def _credential(raw: bytes, header: str) -> bytes | None:
    """A key or token without its scheme; None for another scheme of ``Authorization`` (RFC 9110 section 11.4)."""
    value = raw.strip(b" \t")
    if value[: len(_BEARER)].lower() == _BEARER:
        return value[len(_BEARER) :].strip(b" \t")
    return None if header == "authorization" else value
