"""From what a server sees of a request to the facts that rules may rely on.

A statement about the client counts only if it is verified: a header from a trusted peer, a known key, a claim of a
verified token. What is not verified is absent, so that a rule falls through to the next thing it knows. From a peer
that is not trusted, identity headers and forwarding headers do not exist at all, not even for rules that match headers.

Text: an identity value is UTF-8 and printable, without blanks around it, and of at most ``IDENTITY_BYTES_MAX`` bytes;
otherwise it is absent and counted. An identity header that is there twice is absent too: which one the proxy set cannot be
told. Other headers are the client's word; their bytes are read as UTF-8 where they are, else as Latin-1, and lines of
one name are joined by ``", "`` (RFC 9110 section 5.3). Names with underscores are never those with hyphens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sluicegate.bounds import JWKS_BYTES_MAX
from sluicegate.clock import Clock
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.config import ClaimSource, HeaderSource, IdentityConfig, JwtConfig, KeySource, Source
from sluicegate.rules.identity.files import read_file
from sluicegate.rules.identity.forwarded import Chain
from sluicegate.rules.identity.jwt import KeySet
from sluicegate.rules.identity.keys import load_keys
from sluicegate.rules.identity.memos import HeaderNames, PeerAddresses
from sluicegate.rules.identity.readers import Found, Reader, claims_reader, header_reader, key_reader
from sluicegate.rules.identity.stats import IdentityStats
from sluicegate.rules.identity.tokens import TokenVerifier
from sluicegate.rules.identity.wanted import headers_needed
from sluicegate.rules.model import RuleSet, Tiers

__all__ = ["Headers", "IdentityResolver"]

Headers = Sequence[tuple[bytes, bytes]]
"""Header lines in the order received: names in any case, values as they stood on the wire."""

_PLACES = {"user": 0, "api_key": 1, "tenant": 2, "tier": 3}


class IdentityResolver:
    """Builds the facts of requests by one rule set's identity settings. Safe to share between threads.

    ``config`` None believes nobody. ``tiers`` are the known tiers: another tier is counted and passed on. ``base_dir`` is
    what relative paths in the settings are relative to (None: the working directory). ``wanted_headers``: lower-case
    names that rules look at; None keeps every header, and an empty set leaves ``Facts.headers`` None.

    Files are read here, once. Raises ConfigurationError where one cannot be used, MissingExtra where tokens are asked
    for without the extra ``server``. Key sets at URLs are fetched by ``refresh`` only; until then their tokens are absent.
    """

    __slots__ = (
        "_canonical",
        "_chains",
        "_guarded",
        "_readers",
        "_single",
        "_slot",
        "_tier_names",
        "_trusted",
        "_verifiers",
        "_wanted",
        "config",
        "stats",
    )

    def __init__(
        self,
        config: IdentityConfig | None,
        tiers: Tiers | None = None,
        *,
        clock: Clock,
        base_dir: Path | None = None,
        wanted_headers: frozenset[str] | None = None,
    ) -> None:
        self.config = config = config or IdentityConfig()
        self.stats = IdentityStats()
        self._tier_names = frozenset(tiers.names) if tiers is not None and tiers.names else None
        self._trusted = config.trusted_peers.contains
        self._canonical: Callable[[str], str | None] = PeerAddresses().__getitem__
        self._chains = tuple(
            (name, Chain(name, config.trusted_peers, self.stats)) for name in sorted(config.forwarding_headers)
        )
        self._guarded = config.identity_headers | config.forwarding_headers
        self._single = frozenset(_carrier(source) for _, source in config.sources())
        self._wanted = wanted_headers
        needed = None if wanted_headers is None else wanted_headers | self._guarded | self._single
        self._slot: Callable[[bytes], str | None] = HeaderNames(needed).__getitem__
        self._verifiers: list[TokenVerifier] = []
        self._readers: list[Reader] = []
        self._build_readers(base_dir or Path(), clock)

    @classmethod
    def for_rules(cls, ruleset: RuleSet, *, clock: Clock, base_dir: Path | None = None) -> IdentityResolver:
        """The resolver of a rule set: by its identity block, with the headers its rules look at."""
        config = ruleset.identity if isinstance(ruleset.identity, IdentityConfig) else None
        return cls(config, ruleset.tiers, clock=clock, base_dir=base_dir, wanted_headers=headers_needed(ruleset.rules))

    def _build_readers(self, base_dir: Path, clock: Clock) -> None:
        claims: dict[JwtConfig, list[tuple[str, int]]] = {}
        for dimension, source in self.config.sources():
            place = _PLACES[dimension]
            if isinstance(source, HeaderSource):
                self._readers.append(header_reader(source.header, place, self.stats))
            elif isinstance(source, KeySource):
                keys = load_keys(base_dir / source.keys)
                self._readers.append(key_reader(source.header, keys, place, self.stats))
            else:
                claims.setdefault(source.jwt, []).append((source.claim, place))
        for jwt, places in claims.items():
            verifier = TokenVerifier(jwt, [claim for claim, _ in places], clock=clock, stats=self.stats)
            if not jwt.is_url:
                path = base_dir / jwt.jwks
                verifier.use(KeySet(read_file(path, JWKS_BYTES_MAX, "key set"), jwt.algorithms, str(path)))
            self._verifiers.append(verifier)
            self._readers.append(claims_reader(verifier, places))

    def facts(self, method: str, target: str, host: str | None, headers: Headers, peer_ip: str | None) -> Facts:
        """The facts of one request.

        ``target`` is the raw request target and ``host`` the authority the request is for; both are passed through.
        ``peer_ip`` is the address of the other end of the connection, None where it has none (a Unix socket): then
        ``ip`` is absent unless that peer is trusted and names the client. Never raises on what a client sent.
        """
        slot_of = self._slot
        lines = [(slot, value) for name, value in headers if (slot := slot_of(name)) is not None]
        if peer_ip is None:
            ip, trusted = None, self.config.trust_unix
        else:
            ip, trusted = self._canonical(peer_ip), self._trusted(peer_ip)
        if lines:
            found = dict(lines)
            if len(found) != len(lines):
                found = self._joined(lines)
        else:
            found = {}
        if trusted:
            ip = self._client(found, ip)
        if ip is None:
            self.stats.address_unknown += 1
        identity: list[str | None] = [None, None, None, None]
        for reader in self._readers:
            reader(found, trusted, identity)
        user, api_key, tenant, tier = identity
        if tier is not None and self._tier_names is not None and tier not in self._tier_names:
            self.stats.tier_unknown += 1
        return Facts(
            method=method,
            path=target,
            host=host,
            ip=ip,
            user=user,
            api_key=api_key,
            tenant=tenant,
            tier=tier,
            headers=None if self._wanted is not None and not self._wanted else self._visible(found, trusted),
        )

    def client_ip(self, headers: Headers, peer_ip: str | None) -> str | None:
        """The canonical address of the client, walked from the peer; None where nobody trusted names one."""
        peer = None if peer_ip is None else self._canonical(peer_ip)
        if not self.is_trusted(peer_ip):
            return peer
        forwarding = self.config.forwarding_headers
        lines = [(slot, value) for name, value in headers if (slot := self._slot(name)) in forwarding and slot]
        return self._client(self._joined(lines), peer)

    def visible(self, headers: Headers, peer_ip: str | None, names: frozenset[str]) -> dict[str, str]:
        """Of these lower-case names the headers that a rule may look at, whatever the rules of this resolver look at.

        Those that carry an identity or an address are among them only where the peer is trusted, and never if repeated.
        """
        trusted = self.is_trusted(peer_ip)
        lines = [(name, value) for raw, value in headers if (name := raw.decode("latin-1").lower()) in names]
        found = self._joined(lines)
        return {name: _text(raw) for name, raw in found.items() if trusted or name not in self._guarded}

    def is_trusted(self, peer_ip: str | None) -> bool:
        """Whether this peer may speak for its clients; None is a peer on a Unix socket."""
        return self.config.trust_unix if peer_ip is None else self._trusted(peer_ip)

    @property
    def looks_at_headers(self) -> bool:
        """Whether some rule may look at headers, so that facts have them."""
        return self._wanted is None or bool(self._wanted)

    @property
    def jwks_urls(self) -> tuple[str, ...]:
        """Where key sets are to be fetched from, each once."""
        return tuple(dict.fromkeys(verifier.config.jwks for verifier in self._verifiers if verifier.config.is_url))

    @property
    def refresh_wanted(self) -> bool:
        """True where a key set at a URL is not loaded yet, or a token was signed by a key that is not in it.

        Anybody can send such a token, so whoever asks decides how often a refresh may follow.
        """
        return any(v.config.is_url and (v.keys is None or v.unknown_key_seen) for v in self._verifiers)

    def refresh(self, fetch: Callable[[str], bytes]) -> dict[str, str]:
        """Fetch the key sets at URLs by ``fetch(url)``; never called on a request, may block.

        Returns URL -> what is wrong for those that could not be fetched (OSError) or used (ValueError); they
        keep the keys they had.
        """
        failed = {}
        for url in self.jwks_urls:
            try:
                document = fetch(url)
                for verifier in self._verifiers:
                    if verifier.config.jwks == url:
                        verifier.use(KeySet(document, verifier.config.algorithms, url))
            except (OSError, ValueError) as error:
                failed[url] = str(error) or type(error).__name__
        return failed

    def adopt(self, previous: IdentityResolver) -> None:
        """Take over the counts and the fetched key sets of the resolver this one replaces."""
        for reason, count in previous.stats.as_dict().items():
            setattr(self.stats, reason, getattr(self.stats, reason) + count)
        for verifier in self._verifiers:
            for other in previous._verifiers:
                same = other.config.jwks == verifier.config.jwks
                if (
                    verifier.config.is_url
                    and same
                    and other.config.algorithms == verifier.config.algorithms
                    and other.keys
                ):
                    verifier.use(other.keys)

    def _client(self, found: Found, peer: str | None) -> str | None:
        """The address a trusted peer names; the peer's own where it names none, or two."""
        client = peer
        told = False
        for name, chain in self._chains:
            raw = found.get(name)
            if raw is None:
                continue
            named = chain[raw] or peer
            if told and named != client:
                self.stats.forwarded_conflict += 1
                return peer
            client, told = named, True
        return client

    def _joined(self, lines: list[tuple[str, bytes]]) -> Found:
        """Lines of one name made one value; a repeated header that carries an identity is left out and counted."""
        grouped: dict[str, list[bytes]] = {}
        for name, value in lines:
            grouped.setdefault(name, []).append(value)
        found = {}
        for name, values in grouped.items():
            if len(values) > 1 and name in self._single:
                self.stats.header_repeated += 1
            else:
                found[name] = b", ".join(values)
        return found

    def _visible(self, found: Found, trusted: bool) -> dict[str, str]:
        """The headers rules may look at."""
        wanted, guarded = self._wanted, self._guarded
        return {
            name: _text(raw)
            for name, raw in found.items()
            if (wanted is None or name in wanted) and (trusted or name not in guarded)
        }


def _carrier(source: Source) -> str:
    """The header an identity comes in."""
    return source.jwt.header if isinstance(source, ClaimSource) else source.header


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
