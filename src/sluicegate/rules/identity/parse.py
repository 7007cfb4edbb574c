"""Reads the ``identity:`` block: everything that is wrong with it, not only the first thing."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from urllib.parse import urlsplit

from sluicegate.bounds import JWT_LEEWAY_S_MAX
from sluicegate.errors import ConfigurationError
from sluicegate.rules.identity.addresses import IPV4_BITS, IPV6_BITS, Networks
from sluicegate.rules.identity.config import (
    ASYMMETRIC_ALGORITHMS,
    SYMMETRIC_ALGORITHMS,
    ClaimSource,
    HeaderSource,
    IdentityConfig,
    JwtConfig,
    KeySource,
    Source,
)
from sluicegate.rules.identity.fields import FieldReader, ProblemSink, closest

__all__ = ["parse_identity", "read_identity"]

_DIMENSIONS = ("user", "api_key", "tenant", "tier")
_TOP = ("trusted_peers", *_DIMENSIONS, "ip", "jwt")
_SOURCE = ("header", "keys", "claim", "jwt")
_IP = ("ipv4_prefix", "ipv6_prefix", "header")
_JWT = ("jwks", "claim", "issuer", "audience", "algorithms", "header", "leeway_s")

# Headers of the protocol itself, and headers that carry a secret: no identity can be their bare value.
_NO_IDENTITY = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-forwarded-for",
    }
)
_ONE_SOURCE = (
    "must be exactly one of {header: NAME}, {keys: FILE}, {claim: NAME} and {jwt: {...}}; only keys may also have the "
    "header that carries the key"
)
# X-Forwarded-For and Forwarded that disagree fall back to the peer's address; a Unix socket has none.
_UNIX_NEEDS_HEADER = "is needed with the trusted peer 'unix': the one header its proxy sets the client's address in"
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


def parse_identity(raw: object, problem: ProblemSink) -> IdentityConfig | None:
    """Turn the parsed YAML of ``identity:`` into settings; None (no block) gives the defaults, which believe nobody.

    Reports every problem to ``problem`` and returns None when there was one. Reads no files: that those named
    exist is found out when they are loaded.
    """
    parser = _Parser(problem)
    config = parser.identity(raw)
    return None if parser.failed else config


def read_identity(raw: Mapping[str, object]) -> IdentityConfig:
    """The settings that a mapping means which a program holds; raises ConfigurationError with every problem."""
    problems: list[str] = []

    def problem(field: str, message: str, suggestion: str | None) -> None:
        problems.append(f"{field}: {message}" + ("" if suggestion is None else f" (did you mean {suggestion!r}?)"))

    config = parse_identity(raw, problem)
    if config is None:
        raise ConfigurationError("; ".join(problems))
    return config


class _Parser(FieldReader):
    has_jwt = False

    def identity(self, raw: object) -> IdentityConfig:
        block = self.mapping(raw, "identity", _TOP)
        self.has_jwt = "jwt" in block
        peers, trust_unix = self.peers(block.get("trusted_peers"))
        shared, shared_claim = self.shared_jwt(block)
        sources = {name: self.source(name, block[name], shared) for name in _DIMENSIONS if name in block}
        if shared is not None and "user" not in block:
            sources["user"] = ClaimSource(shared_claim, shared)
        elif shared is not None and not any(source is None or _reads(source, shared) for source in sources.values()):
            self.report("identity.jwt", "no identity reads a claim of the token; give one {claim: NAME}")
        ip = self.mapping(block.get("ip"), "identity.ip", _IP)
        if trust_unix and "header" not in ip:
            self.report("identity.ip.header", _UNIX_NEEDS_HEADER, "X-Forwarded-For")
        return IdentityConfig(
            trusted_peers=peers,
            trust_unix=trust_unix,
            user=sources.get("user"),
            api_key=sources.get("api_key"),
            tenant=sources.get("tenant"),
            tier=sources.get("tier"),
            ipv4_prefix=self.integer(ip, "ipv4_prefix", "identity.ip", 32, IPV4_BITS),
            ipv6_prefix=self.integer(ip, "ipv6_prefix", "identity.ip", 64, IPV6_BITS),
            forwarded_header=self.header(ip["header"], "identity.ip.header") if "header" in ip else None,
        )

    def peers(self, raw: object) -> tuple[Networks, bool]:
        cidrs = []
        trust_unix = False
        for path, text in self.texts(raw, "identity.trusted_peers", "a list of networks such as [10.0.0.0/8]"):
            if text == "unix":
                trust_unix = True
                continue
            try:
                Networks.parse([text])
            except ValueError as error:
                self.report(path, str(error), _network_meant(text))
            else:
                cidrs.append(text)
        return Networks.parse(cidrs), trust_unix

    def source(self, name: str, raw: object, shared: JwtConfig | None) -> Source | None:
        path = f"identity.{name}"
        block = self.mapping(raw, path, _SOURCE)
        kinds = [kind for kind in ("keys", "claim", "jwt", "header") if kind in block]
        if kinds == ["keys", "header"]:
            kinds = ["keys"]
        if len(kinds) != 1:
            if kinds or raw is None or raw == {}:
                self.report(path, _ONE_SOURCE)
            return None
        kind = kinds[0]
        if kind == "header":
            return self.header_source(block["header"], f"{path}.header")
        if kind == "keys":
            return self.key_source(name, block, path)
        return self.claim_source(block, path, shared)

    def header_source(self, raw: object, path: str) -> HeaderSource | None:
        header = self.header(raw, path)
        if header in _NO_IDENTITY:
            self.report(path, f"{raw!r} cannot be an identity: it belongs to the protocol or carries a secret")
            return None
        return None if header is None else HeaderSource(header)

    def key_source(self, name: str, block: dict[str, object], path: str) -> KeySource | None:
        if name == "tier":
            self.report(f"{path}.keys", "a tier cannot be a key's name; map keys to tiers under subjects instead")
            return None
        file = self.text(block["keys"], f"{path}.keys", "the path of a keys file")
        header = self.header(block["header"], f"{path}.header") if "header" in block else "x-api-key"
        return None if file is None or header is None else KeySource(file, header)

    def claim_source(self, block: dict[str, object], path: str, shared: JwtConfig | None) -> ClaimSource | None:
        if "claim" in block:
            claim = self.claim(block["claim"], f"{path}.claim")
            if not self.has_jwt:
                self.report(f"{path}.claim", "needs an identity.jwt block that says how tokens are verified")
            return None if claim is None or shared is None else ClaimSource(claim, shared)
        inner = self.mapping(block["jwt"], f"{path}.jwt", _JWT)
        jwt = self.jwt(inner, f"{path}.jwt")
        claim = self.claim(inner.get("claim", "sub"), f"{path}.jwt.claim")
        return None if jwt is None or claim is None else ClaimSource(claim, jwt)

    def shared_jwt(self, block: dict[str, object]) -> tuple[JwtConfig | None, str]:
        """The common ``jwt`` block, and the claim that is the user where no ``user`` is given."""
        if "jwt" not in block:
            return None, ""
        inner = self.mapping(block["jwt"], "identity.jwt", _JWT)
        if "claim" in inner and "user" in block:
            self.report("identity.jwt.claim", "is the user's claim, but identity.user says otherwise; keep one of them")
        claim = self.claim(inner.get("claim", "sub"), "identity.jwt.claim") or ""
        return self.jwt(inner, "identity.jwt"), claim

    def jwt(self, block: dict[str, object], path: str) -> JwtConfig | None:
        if "jwks" not in block:
            self.report(f"{path}.jwks", "is missing: the URL or the path of the issuer's key set (JWKS)")
            return None
        jwks = self.text(block["jwks"], f"{path}.jwks", "the URL or the path of a key set (JWKS)")
        algorithms = self.algorithms(block.get("algorithms"), f"{path}.algorithms")
        header = self.header(block["header"], f"{path}.header") if "header" in block else "authorization"
        issuer = self.one_or_more(block.get("issuer"), f"{path}.issuer")
        audience = self.one_or_more(block.get("audience"), f"{path}.audience")
        leeway_s = self.integer(block, "leeway_s", path, 30, JWT_LEEWAY_S_MAX)
        if jwks is None or header is None or not self.jwks_is_safe(jwks, algorithms, path):
            return None
        return JwtConfig(jwks, issuer, audience, algorithms, header, leeway_s)

    def jwks_is_safe(self, jwks: str, algorithms: tuple[str, ...], path: str) -> bool:
        scheme, separator, _ = jwks.partition("://")
        if not separator:
            return True
        if scheme not in ("https", "http"):
            self.report(f"{path}.jwks", f"{jwks!r} is neither an https URL nor a path")
            return False
        try:
            parts = urlsplit(jwks)
            host = parts.hostname
        except ValueError:
            host = None
        else:
            if parts.username is not None:
                # Not shown again: what is said of a rules file is logged, and kept in the audit trail.
                self.report(f"{path}.jwks", "holds a user name or a password; rules are no place for secrets")
                return False
        if not host:
            self.report(f"{path}.jwks", f"{jwks!r} has no valid host")
            return False
        if scheme == "http" and host not in _LOOPBACK_HOSTS:
            https = f"https{jwks[4:]}"
            self.report(
                f"{path}.jwks", f"{jwks!r} is not encrypted: whoever is on the way could choose the keys", https
            )
            return False
        if set(algorithms) & set(SYMMETRIC_ALGORITHMS):
            self.report(
                f"{path}.algorithms", "HS256, HS384 and HS512 use a secret, which must come from a file, not a URL"
            )
            return False
        return True

    def algorithms(self, raw: object, path: str) -> tuple[str, ...]:
        if raw is None:
            return ASYMMETRIC_ALGORITHMS
        known = (*ASYMMETRIC_ALGORITHMS, *SYMMETRIC_ALGORITHMS)
        chosen = []
        for item_path, text in self.texts(raw, path, "a list of algorithms such as [RS256]"):
            if text.lower() == "none":
                self.report(item_path, "'none' means no signature at all and is never accepted")
            elif text not in known:
                self.report(item_path, f"{text!r} is not a known algorithm", closest(text, known))
            else:
                chosen.append(text)
        if raw == []:
            self.report(path, "is empty: no token could be verified")
        symmetric = set(chosen) & set(SYMMETRIC_ALGORITHMS)
        if symmetric and len(symmetric) != len(set(chosen)):
            self.report(path, "mixes secrets (HS256, HS384, HS512) with public keys; a key set is one or the other")
        return tuple(dict.fromkeys(chosen))


def _reads(source: Source | None, jwt: JwtConfig) -> bool:
    return isinstance(source, ClaimSource) and source.jwt is jwt


def _network_meant(text: str) -> str | None:
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        return None
