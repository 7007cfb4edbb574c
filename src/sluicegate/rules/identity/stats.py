"""Why an identity was not believed: plain counts, one per reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["IdentityStats"]


@dataclass(slots=True)
class IdentityStats:
    """Counts since the start. Written without a lock: threads that collide may lose a count, never corrupt one."""

    header_untrusted: int = 0
    """An identity header from a peer that is not trusted; ignored."""
    header_repeated: int = 0
    """An identity header sent more than once in one request; which one is meant cannot be told, so none counts."""
    value_too_long: int = 0
    """An identity value longer than ``bounds.IDENTITY_BYTES_MAX``."""
    value_malformed: int = 0
    """An identity value that is not UTF-8, or holds control characters or other unprintable ones."""
    tier_unknown: int = 0
    """A tier that the rule file does not name; the default tier is used."""
    address_unknown: int = 0
    """A request without a client address: the peer is a Unix socket, and nobody trusted names the client."""
    forwarded_malformed: int = 0
    """A forwarding chain with something else than an address at the place that decides."""
    forwarded_conflict: int = 0
    """``X-Forwarded-For`` and ``Forwarded`` in one request, and they name different clients."""
    forwarded_too_long: int = 0
    """A forwarding chain of more than ``bounds.FORWARDED_HOPS_MAX`` trusted hops."""
    key_unknown: int = 0
    """An API key that is not in the keys file."""
    token_verified: int = 0
    """Tokens whose signature was checked and good (a token seen again before it expires is not checked again)."""
    token_too_long: int = 0
    """A token longer than ``bounds.TOKEN_BYTES_MAX``."""
    token_malformed: int = 0
    """Not a signed JWT in compact form, or one with critical extensions."""
    token_algorithm: int = 0
    """A token signed by an algorithm that is not allowed here, ``none`` included."""
    token_key_unknown: int = 0
    """A token signed by a key that is not in the key set (or the key set is not loaded yet)."""
    token_signature: int = 0
    """A token whose signature does not fit."""
    token_expired: int = 0
    """A token after its ``exp``, or without one."""
    token_not_yet: int = 0
    """A token before its ``nbf``."""
    token_issuer: int = 0
    """A token of another issuer."""
    token_audience: int = 0
    """A token for another audience."""
    claim_absent: int = 0
    """A verified token without the claim that was asked for, or with one that is no text or integer."""

    def as_dict(self) -> dict[str, int]:
        """Reason -> count, for metrics."""
        return asdict(self)
