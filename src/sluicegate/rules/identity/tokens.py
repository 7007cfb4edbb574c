"""Verified tokens: who signed, for whom, until when, and which claims are wanted (RFC 7519, RFC 8725).

The cheap checks come first, so that an expired or foreign token costs microseconds and only a token that could be good
costs a signature check (about 35 µs for RSA, 80 µs for elliptic curves). A good token is remembered by its SHA-256 until
it expires; the token itself is not kept. A bad signature is not remembered: whoever sends one can send another, and
remembering them would push out the good ones.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from math import isfinite
from typing import NamedTuple

import msgspec

from sluicegate.bounds import IDENTITY_BYTES_MAX, TOKEN_BYTES_MAX, TOKENS_MEMO_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.rules.identity.config import JwtConfig
from sluicegate.rules.identity.jwt import KeySet, require_pyjwt
from sluicegate.rules.identity.stats import IdentityStats

__all__ = ["TokenVerifier"]

# The last second of the year 9999: later dates are mistakes, and would not fit the arithmetic of other systems.
_LATEST_S = 253_402_300_799
# Three segments of base64url (the decoder skips foreign bytes silently); some issuers keep the padding.
_COMPACT = re.compile(rb"[A-Za-z0-9_-]+={0,2}\.[A-Za-z0-9_-]+={0,2}\.[A-Za-z0-9_-]*={0,2}")
_NO_CLAIMS: Mapping[str, str] = {}


class _Verified(NamedTuple):
    """What is kept of a token with a good signature."""

    valid_from_us: int
    valid_until_us: int
    claims: Mapping[str, str]


class _Rejected(Exception):
    """Carries the name of the counter in IdentityStats."""


class TokenVerifier:
    """Verifies the tokens of one issuer; safe to share between threads.

    ``wanted`` are the claims that are kept. Without a key set (``keys`` is None until the first ``use``) no token is good.
    """

    __slots__ = ("_older", "_recent", "clock", "config", "keys", "stats", "unknown_key_seen", "wanted")

    def __init__(self, config: JwtConfig, wanted: Iterable[str], *, clock: Clock, stats: IdentityStats) -> None:
        require_pyjwt()
        self.config = config
        self.wanted = tuple(dict.fromkeys(wanted))
        self.clock = clock
        self.stats = stats
        self.keys: KeySet | None = None
        self.unknown_key_seen = False
        """True since a token named a key that is not in the set: the issuer may have a new one."""
        self._recent: dict[bytes, _Verified] = {}
        self._older: dict[bytes, _Verified] = {}

    def use(self, keys: KeySet) -> None:
        """Verify by this key set from now on; everything remembered under the old one is forgotten."""
        self.keys = keys
        self.unknown_key_seen = False
        self._recent = {}
        self._older = {}

    def claims(self, token: bytes) -> Mapping[str, str]:
        """The wanted claims of a token; empty where it is not verified, and then a counter says why."""
        if len(token) > TOKEN_BYTES_MAX:
            self.stats.token_too_long += 1
            return _NO_CLAIMS
        digest = sha256(token).digest()
        verified = self._recent.get(digest) or self._older.get(digest)
        try:
            if verified is None:
                verified = self._verify(token)
                self._remember(digest, verified)
            elif digest not in self._recent:
                self._remember(digest, verified)
            self._in_time(verified.valid_from_us, verified.valid_until_us)
        except _Rejected as rejected:
            reason = str(rejected)
            setattr(self.stats, reason, getattr(self.stats, reason) + 1)
            return _NO_CLAIMS
        return verified.claims

    def _remember(self, digest: bytes, verified: _Verified) -> None:
        """Two generations: what was asked for in the last ``TOKENS_MEMO_MAX`` new tokens stays."""
        if len(self._recent) >= TOKENS_MEMO_MAX:
            self._older = self._recent
            self._recent = {}
        self._recent[digest] = verified

    def _verify(self, token: bytes) -> _Verified:
        signed, header, payload, signature = _parts(token)
        if "crit" in header or "b64" in header:
            raise _Rejected("token_malformed")
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self.config.algorithms:
            raise _Rejected("token_algorithm")
        if kid is not None and not isinstance(kid, str):
            raise _Rejected("token_malformed")
        valid_from_us, valid_until_us = self._validity(payload)
        self._in_time(valid_from_us, valid_until_us)
        self._meant_for_us(payload)
        keys = self.keys
        key = None if keys is None else keys.find(kid, algorithm)
        if keys is None or key is None:
            self.unknown_key_seen = True
            raise _Rejected("token_key_unknown")
        if not keys.verifies(signed, signature, key):
            raise _Rejected("token_signature")
        self.stats.token_verified += 1
        return _Verified(valid_from_us, valid_until_us, self._wanted_claims(payload))

    def _validity(self, payload: Mapping[str, object]) -> tuple[int, int]:
        """Microseconds of wall time from which and until which the token counts, leeway included."""
        leeway_us = self.config.leeway_s * US_PER_S
        expires_us = _date_us(payload.get("exp"))
        if expires_us is None:
            raise _Rejected("token_expired")
        if "nbf" not in payload:
            return 0, expires_us + leeway_us
        not_before_us = _date_us(payload["nbf"])
        if not_before_us is None:
            raise _Rejected("token_not_yet")
        return not_before_us - leeway_us, expires_us + leeway_us

    def _in_time(self, valid_from_us: int, valid_until_us: int) -> None:
        now_us = self.clock.now_us()
        if now_us >= valid_until_us:
            raise _Rejected("token_expired")
        if now_us < valid_from_us:
            raise _Rejected("token_not_yet")

    def _meant_for_us(self, payload: Mapping[str, object]) -> None:
        config = self.config
        if config.issuer and payload.get("iss") not in config.issuer:
            raise _Rejected("token_issuer")
        if config.audience:
            stated = payload.get("aud")
            audiences = stated if isinstance(stated, list) else [stated]
            if not any(audience in config.audience for audience in audiences):
                raise _Rejected("token_audience")

    def _wanted_claims(self, payload: Mapping[str, object]) -> Mapping[str, str]:
        found = {}
        for name in self.wanted:
            value = payload.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
            if isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= IDENTITY_BYTES_MAX:
                found[name] = value
            else:
                self.stats.claim_absent += 1
        return found


def _parts(token: bytes) -> tuple[bytes, dict[str, object], dict[str, object], bytes]:
    """What is signed, header and payload (both still unverified), and signature of a compact JWT."""
    if _COMPACT.fullmatch(token) is None:
        raise _Rejected("token_malformed")
    signed, _, signature = token.rpartition(b".")
    header, _, payload = signed.partition(b".")
    return signed, _json_object(header), _json_object(payload), _decoded(signature)


def _decoded(segment: bytes) -> bytes:
    bare = segment.rstrip(b"=")
    try:
        return urlsafe_b64decode(bare + b"=" * (-len(bare) % 4))
    except binascii.Error:
        raise _Rejected("token_malformed") from None


def _json_object(segment: bytes) -> dict[str, object]:
    try:
        decoded = msgspec.json.decode(_decoded(segment))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise _Rejected("token_malformed")
    return decoded


def _date_us(value: object) -> int | None:
    """A NumericDate (RFC 7519 section 2) in microseconds, or None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    if not 0 <= value <= _LATEST_S:
        return None
    return int(value * US_PER_S)
