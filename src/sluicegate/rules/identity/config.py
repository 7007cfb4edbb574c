"""The ``identity:`` block of a rule file as data: which statement about a client is believed, and from whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from sluicegate.rules.identity.addresses import Networks

__all__ = [
    "ASYMMETRIC_ALGORITHMS",
    "SYMMETRIC_ALGORITHMS",
    "ClaimSource",
    "HeaderSource",
    "IdentityConfig",
    "JwtConfig",
    "KeySource",
    "Source",
    "Unverified",
]

ASYMMETRIC_ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
SYMMETRIC_ALGORITHMS = ("HS256", "HS384", "HS512")

# Private IPv6 is a /7 (RFC 4193), private IPv4 at most a /8 (RFC 1918): what is wider holds strangers.
_WIDEST_PRIVATE_V4 = 8
_WIDEST_V6 = 16
_UNIQUE_LOCAL = IPv6Network("fc00::/7")


@dataclass(frozen=True, slots=True)
class HeaderSource:
    """The value of a header, believed from a trusted peer only. ``header`` is in lower case."""

    header: str


@dataclass(frozen=True, slots=True)
class KeySource:
    """The name of a known API key, believed from anyone who presents the key.

    ``keys`` is the path of the keys file as written; ``header`` (lower case) carries the key.
    """

    keys: str
    header: str = "x-api-key"


@dataclass(frozen=True, slots=True)
class JwtConfig:
    """How a token is verified.

    ``jwks``: URL or path of the key set. ``issuer``, ``audience``: accepted values; empty accepts any. ``header``: lower
    case; ``authorization`` carries ``Bearer TOKEN``. ``leeway_s``: how far the issuer's clock may differ, in seconds.
    """

    jwks: str
    issuer: tuple[str, ...] = ()
    audience: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ASYMMETRIC_ALGORITHMS
    header: str = "authorization"
    leeway_s: int = 30

    @property
    def is_url(self) -> bool:
        """True where the key set is fetched, False where it is a file."""
        return self.jwks.startswith(("https://", "http://"))


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """A claim of a verified token, believed from anyone who presents the token."""

    claim: str
    jwt: JwtConfig


Source = HeaderSource | KeySource | ClaimSource


class Unverified(NamedTuple):
    """A dimension whose identity is not what it seems. ``field`` is where to look, ``message`` is for the operator."""

    dimension: str
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class IdentityConfig:
    """The whole block. The default believes nobody: the client is the peer's address and nothing more.

    ``trust_unix``: whether a peer on a Unix socket is trusted. ``forwarded_header``: the one header (lower case) that
    carries the client's address; None reads ``X-Forwarded-For`` and ``Forwarded``, which must agree where both are there.
    """

    trusted_peers: Networks = field(default_factory=Networks)
    trust_unix: bool = False
    user: Source | None = None
    api_key: Source | None = None
    tenant: Source | None = None
    tier: Source | None = None
    ipv4_prefix: int = 32
    ipv6_prefix: int = 64
    forwarded_header: str | None = None

    def sources(self) -> Iterator[tuple[str, Source]]:
        """Each configured dimension and where it comes from."""
        for dimension in ("user", "api_key", "tenant", "tier"):
            source: Source | None = getattr(self, dimension)
            if source is not None:
                yield dimension, source

    @property
    def identity_headers(self) -> frozenset[str]:
        """Lower-case names that say who the client is by mere presence: strip them where the peer is not trusted.

        Compare with underscores read as hyphens: many backends cannot tell ``X_User_Id`` from ``X-User-Id``. Headers
        that carry a secret or a token are not among them; whoever holds those may send them.
        """
        return frozenset(source.header for _, source in self.sources() if isinstance(source, HeaderSource))

    @property
    def forwarding_headers(self) -> frozenset[str]:
        """Lower-case names of the headers the client's address is read from."""
        if self.forwarded_header is not None:
            return frozenset((self.forwarded_header,))
        return frozenset(("x-forwarded-for", "forwarded"))

    @property
    def files(self) -> tuple[str, ...]:
        """Paths as written of the files that are read when the rules are loaded: key sets and known keys."""
        names: dict[str, None] = {}
        for _, source in self.sources():
            if isinstance(source, KeySource):
                names[source.keys] = None
            elif isinstance(source, ClaimSource) and not source.jwt.is_url:
                names[source.jwt.jwks] = None
        return tuple(names)

    def unverified_sources(self) -> tuple[Unverified, ...]:
        """Header identities that anybody can choose, or that nobody can set, because of ``trusted_peers``."""
        wide = [text for text in self.trusted_peers.texts if _holds_strangers(text)]
        nobody = not self.trusted_peers and not self.trust_unix
        if not wide and not nobody:
            return ()
        return tuple(
            Unverified(
                dimension,
                f"identity.{dimension}.header",
                f"header {source.header!r} is ignored from everybody, because trusted_peers is empty"
                if nobody
                else f"header {source.header!r} is believed from strangers, because trusted_peers holds {wide[0]}",
            )
            for dimension, source in self.sources()
            if isinstance(source, HeaderSource)
        )


def _holds_strangers(text: str) -> bool:
    block = ip_network(text)
    if isinstance(block, IPv4Network):
        return block.prefixlen < _WIDEST_PRIVATE_V4
    return block.prefixlen < _WIDEST_V6 and not block.subnet_of(_UNIQUE_LOCAL)
