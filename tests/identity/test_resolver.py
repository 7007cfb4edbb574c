"""From a request to its facts: what is verified is in, everything else is absent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import HEADER_NAMES_MEMO_MAX, IDENTITY_BYTES_MAX, IDENTITY_MEMO_MAX
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.config import HeaderSource, IdentityConfig
from sluicegate.rules.identity.keys import hash_key
from sluicegate.rules.identity.memos import HeaderNames, IdentityTexts, PeerAddresses
from sluicegate.rules.identity.resolver import Headers, IdentityResolver
from sluicegate.rules.identity.stats import IdentityStats
from sluicegate.rules.identity.wanted import headers_needed
from sluicegate.rules.model import CostFrom, Match, Mode, Per, Rule, RuleSet, Scope

Build = Callable[..., IdentityResolver]

PROXY = "10.0.0.1"
STRANGER = "198.51.100.66"
BLOCK = {
    "trusted_peers": ["10.0.0.0/8", "127.0.0.0/8"],
    "user": {"header": "X-User-Id"},
    "api_key": {"header": "X-API-Key"},
    "tenant": {"header": "X-Tenant"},
    "tier": {"header": "X-Tier"},
}
NOW_S = 1_700_000_000


def facts_of(resolver: IdentityResolver, headers: Headers, peer: str | None = PROXY) -> Facts:
    return resolver.facts("GET", "/api?q=1", "api.example", headers, peer)


def counted(resolver: IdentityResolver) -> dict[str, int]:
    return {reason: count for reason, count in resolver.stats.as_dict().items() if count}


def test_a_trusted_peer_speaks_for_its_client(resolver: Build) -> None:
    """All four identities and the client's address come from the headers of a trusted peer."""
    headers = [
        (b"Host", b"api.example"),
        (b"X-Forwarded-For", b"203.0.113.9"),
        (b"x-user-id", b" 8123 "),
        (b"X-Api-Key", b"k1"),
        (b"X-TENANT", b"acme"),
        (b"X-Tier", b"paid"),
    ]
    checked = resolver(BLOCK)
    assert facts_of(checked, headers) == Facts(
        method="GET",
        path="/api?q=1",
        host="api.example",
        ip="203.0.113.9",
        user="8123",
        api_key="k1",
        tenant="acme",
        tier="paid",
    )
    assert counted(checked) == {}


def test_no_settings_believe_nobody(clock: ManualClock) -> None:
    """Without an identity block every header is the client's word, and the client is the peer."""
    checked = IdentityResolver(None, clock=clock, wanted_headers=frozenset())
    headers = [(b"X-Forwarded-For", b"203.0.113.9"), (b"Forwarded", b"for=203.0.113.9"), (b"X-User-Id", b"8123")]
    for peer in (PROXY, "127.0.0.1", "::1"):
        assert facts_of(checked, headers, peer) == Facts(method="GET", path="/api?q=1", host="api.example", ip=peer)
        assert checked.client_ip(headers, peer) == peer
        assert not checked.is_trusted(peer)


@pytest.mark.parametrize(
    ("peer", "ip"),
    [
        ("198.51.100.66", "198.51.100.66"),
        ("::ffff:198.51.100.66", "198.51.100.66"),
        ("2001:DB8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("testclient", None),
        ("", None),
        (None, None),
    ],
)
def test_the_peer_is_canonical(resolver: Build, peer: str | None, ip: str | None) -> None:
    """T114, P90: a dual-stack socket's spelling is no other client; a peer without an address has no ip, not a shared one."""
    checked = resolver(BLOCK)
    assert facts_of(checked, [], peer).ip == ip
    assert facts_of(checked, [(b"X-User-Id", b"8123")], peer).user is None
    assert checked.client_ip([], peer) == ip
    assert checked.stats.address_unknown == (2 if ip is None else 0)


def test_trust_is_by_address_not_by_text(resolver: Build) -> None:
    """A trusted proxy on a dual-stack socket is trusted in its IPv6 spelling too."""
    checked = resolver(BLOCK)
    assert facts_of(checked, [(b"X-User-Id", b"8123")], "::ffff:10.0.0.1").user == "8123"
    assert checked.is_trusted("::ffff:10.0.0.1")
    assert not checked.is_trusted("::ffff:198.51.100.66")


def test_a_trusted_unix_socket(resolver: Build) -> None:
    """Behind a proxy on a Unix socket the header names the client; where it names none there is no ip at all."""
    checked = resolver(
        {"trusted_peers": ["unix"], "ip": {"header": "X-Forwarded-For"}, "user": {"header": "X-User-Id"}}
    )
    found = facts_of(checked, [(b"X-Forwarded-For", b"203.0.113.9"), (b"X-User-Id", b"8123")], None)
    assert (found.ip, found.user) == ("203.0.113.9", "8123")
    assert facts_of(checked, [(b"X-Forwarded-For", b"unknown")], None).ip is None
    assert facts_of(checked, [(b"Forwarded", b"for=203.0.113.9")], None).ip is None
    assert facts_of(checked, [], None).ip is None
    assert checked.is_trusted(None)
    assert not resolver(BLOCK).is_trusted(None)


TEXTS = [
    (b"8123", "8123", None),
    (b"\t 8123 \t", "8123", None),
    (b"CN=Zo\xc3\xab, O=Acme", "CN=Zoë, O=Acme", None),
    (b"x" * IDENTITY_BYTES_MAX, "x" * IDENTITY_BYTES_MAX, None),
    (b"", None, None),
    (b"  ", None, None),
    (b"x" * (IDENTITY_BYTES_MAX + 1), None, "value_too_long"),
    (b"Zo\xeb", None, "value_malformed"),
    (b"a\x00b", None, "value_malformed"),
    (b"a\x7f", None, "value_malformed"),
    (b"a\tb", None, "value_malformed"),
    ("a\u200bb".encode(), None, "value_malformed"),
    ("a\u202eb".encode(), None, "value_malformed"),
]


@pytest.mark.parametrize(("raw", "text", "reason"), TEXTS)
def test_identity_values(resolver: Build, raw: bytes, text: str | None, reason: str | None) -> None:
    """Trimmed printable UTF-8 within the bound is an identity; anything else is absent, and counted every time."""
    checked = resolver(BLOCK)
    assert [facts_of(checked, [(b"X-User-Id", raw)]).user for _ in range(2)] == [text, text]
    assert counted(checked) == ({reason: 2} if reason else {})


def test_a_repeated_identity_header_is_nobody(resolver: Build) -> None:
    """Where a proxy appends its header to the client's own, which one is true cannot be told, so none is."""
    checked = resolver(BLOCK, wanted=frozenset({"x-user-id"}))
    found = facts_of(checked, [(b"X-User-Id", b"victim"), (b"x-user-id", b"8123"), (b"X-Tier", b"paid")])
    assert (found.user, found.tier, found.headers) == (None, "paid", {})
    assert counted(checked) == {"header_repeated": 1}


def test_repeated_forwarding_headers_are_one_list(resolver: Build) -> None:
    """Several lines of a forwarding header are read as one list in their order (RFC 9110)."""
    checked = resolver(BLOCK)
    lines = [(b"X-Forwarded-For", b"192.0.2.1"), (b"Host", b"x"), (b"x-forwarded-for", b"203.0.113.9, 10.0.0.5")]
    assert facts_of(checked, lines).ip == "203.0.113.9"
    assert checked.client_ip(lines, PROXY) == "203.0.113.9"
    assert (
        facts_of(checked, [(b"X-Forwarded-For", b"203.0.113.9"), (b"X-Forwarded-For", b"10.0.0.5")]).ip == "203.0.113.9"
    )


def test_unknown_tiers_are_counted(resolver: Build) -> None:
    """A tier the rules do not name is passed on, for the default to be used, and counted."""
    checked = resolver(BLOCK)
    assert facts_of(checked, [(b"X-Tier", b"gold")]).tier == "gold"
    assert facts_of(checked, [(b"X-Tier", b"free")]).tier == "free"
    assert counted(checked) == {"tier_unknown": 1}


def test_known_keys_are_believed_from_anyone(resolver: Build, tmp_path: Path) -> None:
    """A key in the keys file is its holder's name, whoever sends it; an unknown key is nobody; the key is in no fact."""
    (tmp_path / "keys.txt").write_text(f"billing: {hash_key('s3cr3t')}\n")
    checked = resolver({"api_key": {"keys": "keys.txt"}})
    assert facts_of(checked, [(b"X-API-Key", b" s3cr3t ")], STRANGER).api_key == "billing"
    assert facts_of(checked, [(b"X-API-Key", b"Bearer s3cr3t")], STRANGER).api_key == "billing"
    assert facts_of(checked, [(b"X-API-Key", b"billing")], STRANGER).api_key is None
    assert facts_of(checked, [(b"X-API-Key", b"")], STRANGER).api_key is None
    assert facts_of(checked, [(b"X-API-Key", b"k" * 300)], STRANGER).api_key is None
    assert counted(checked) == {"key_unknown": 1, "value_too_long": 1}
    assert "s3cr3t" not in repr(facts_of(checked, [(b"X-API-Key", b"s3cr3t")], STRANGER))


def test_keys_in_the_authorization_header(resolver: Build, tmp_path: Path) -> None:
    """``Authorization`` carries a key as ``Bearer``, in any case; other schemes are not keys."""
    (tmp_path / "keys.txt").write_text(f"billing: {hash_key('s3cr3t')}\n")
    checked = resolver({"api_key": {"keys": "keys.txt", "header": "Authorization"}})
    assert facts_of(checked, [(b"authorization", b"bEaReR s3cr3t")], STRANGER).api_key == "billing"
    assert facts_of(checked, [(b"Authorization", b"Basic s3cr3t")], STRANGER).api_key is None
    assert facts_of(checked, [(b"Authorization", b"s3cr3t")], STRANGER).api_key is None
    assert counted(checked) == {}


def test_claims_of_a_verified_token(resolver: Build, tmp_path: Path, ec_issuer: Any) -> None:
    """User and tier come from one token of any peer, checked once; a bad token leaves both absent."""
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [ec_issuer.jwk]}))
    checked = resolver({"user": {"claim": "sub"}, "tier": {"claim": "plan"}, "jwt": {"jwks": "jwks.json"}})
    token = ec_issuer.sign({"sub": "8123", "plan": "paid", "exp": NOW_S + 60})
    found = facts_of(checked, [(b"Authorization", b"Bearer " + token)], STRANGER)
    assert (found.user, found.tier) == ("8123", "paid")
    bad = facts_of(checked, [(b"Authorization", b"Bearer " + token[:-6] + b"AAAAAA")], STRANGER)
    assert (bad.user, bad.tier) == (None, None)
    twice = facts_of(checked, [(b"Authorization", b"Bearer " + token), (b"Authorization", b"Bearer x")], STRANGER)
    assert twice.user is None
    assert facts_of(checked, [(b"Authorization", b"Basic dTpw")], STRANGER).user is None
    assert counted(checked) == {"token_verified": 1, "token_signature": 1, "header_repeated": 1}


def test_a_token_in_its_own_header(resolver: Build, tmp_path: Path, ec_issuer: Any) -> None:
    """A token may come in another header, with or without its scheme."""
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [ec_issuer.jwk]}))
    checked = resolver({"tenant": {"jwt": {"jwks": "jwks.json", "claim": "org", "header": "X-Token"}}})
    token = ec_issuer.sign({"org": "acme", "exp": NOW_S + 60})
    assert facts_of(checked, [(b"x-token", token)], STRANGER).tenant == "acme"
    assert facts_of(checked, [(b"x-token", b"Bearer " + token)], STRANGER).tenant == "acme"


def refresh_wanted(resolver: IdentityResolver) -> bool:
    return resolver.refresh_wanted


def test_key_sets_at_urls_are_fetched_outside_of_requests(resolver: Build, rsa_issuer: Any, ec_issuer: Any) -> None:
    """No request fetches anything: tokens are absent until ``refresh``, which reports failures and keeps good keys."""
    url = "https://idp.example/jwks"
    checked = resolver({"jwt": {"jwks": url}})
    token = b"Bearer " + ec_issuer.sign({"sub": "8123", "exp": NOW_S + 60})
    assert checked.jwks_urls == (url,)
    assert refresh_wanted(checked)
    assert facts_of(checked, [(b"Authorization", token)]).user is None

    asked = []

    def fetch(address: str) -> bytes:
        asked.append(address)
        return json.dumps({"keys": [ec_issuer.jwk]}).encode()

    assert checked.refresh(fetch) == {}
    assert asked == [url]
    assert not refresh_wanted(checked)
    assert facts_of(checked, [(b"Authorization", token)]).user == "8123"

    def broken(address: str) -> bytes:
        raise ConnectionError("no route")

    assert checked.refresh(broken) == {url: "no route"}
    assert "not JSON" in checked.refresh(lambda _: b"<html>")[url]
    assert facts_of(checked, [(b"Authorization", token)]).user == "8123"
    facts_of(checked, [(b"Authorization", b"Bearer " + rsa_issuer.sign({"sub": "x", "exp": NOW_S + 60}))])
    assert refresh_wanted(checked)


def test_a_new_resolver_adopts_keys_and_counts(resolver: Build, ec_issuer: Any) -> None:
    """A rule edit does not forget fetched key sets, and counters never go back; another issuer's keys are not taken."""
    block = {"jwt": {"jwks": "https://idp.example/jwks"}}
    old = resolver(block)
    old.refresh(lambda _: json.dumps({"keys": [ec_issuer.jwk]}).encode())
    facts_of(old, [(b"Authorization", b"Bearer x")])
    token = b"Bearer " + ec_issuer.sign({"sub": "8123", "exp": NOW_S + 60})
    new = resolver(block)
    new.adopt(old)
    assert facts_of(new, [(b"Authorization", token)]).user == "8123"
    assert new.stats.token_malformed == 1
    other = resolver({"jwt": {"jwks": "https://other.example/jwks"}})
    other.adopt(old)
    assert facts_of(other, [(b"Authorization", token)]).user is None


def test_files_that_cannot_be_used_fail_at_load(resolver: Build, tmp_path: Path) -> None:
    """A keys file or key set that is missing or broken is an error when the rules are loaded, not on a request."""
    with pytest.raises(ConfigurationError, match="cannot read the keys file"):
        resolver({"api_key": {"keys": "none.txt"}})
    with pytest.raises(ConfigurationError, match="cannot read the key set"):
        resolver({"jwt": {"jwks": "none.json"}})
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="not a JSON Web Key Set"):
        resolver({"jwt": {"jwks": "bad.json"}})


def test_absolute_paths_stand(resolver: Build, tmp_path: Path) -> None:
    """A path that is absolute is not made relative to the rule file."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "keys.txt").write_text(f"billing: {hash_key('k')}\n")
    checked = resolver({"api_key": {"keys": str(place / "keys.txt")}})
    assert facts_of(checked, [(b"X-API-Key", b"k")], STRANGER).api_key == "billing"


def test_headers_are_given_only_where_rules_look(resolver: Build) -> None:
    """Rules that read no header cost nothing; those that do get these, in lower case, joined, and nothing else."""
    lines = [(b"X-Cost", b"3"), (b"Accept", b"a"), (b"accept", b"b"), (b"X-Other", b"Zo\xeb"), (b"X_Cost", b"9")]
    assert facts_of(resolver(BLOCK), lines).headers is None
    wanted = frozenset({"x-cost", "accept", "x-other"})
    found = facts_of(resolver(BLOCK, wanted=wanted), lines).headers
    assert found == {"x-cost": "3", "accept": "a, b", "x-other": "Zoë"}
    assert facts_of(resolver(BLOCK, wanted=wanted), []).headers == {}
    everything = facts_of(resolver(BLOCK, wanted=None), lines).headers
    assert everything == {"x-cost": "3", "accept": "a, b", "x-other": "Zoë", "x_cost": "9"}


def rule(**fields: Any) -> Rule:
    return Rule(**{"name": "r", "scope": Scope.GLOBAL, "match": Match(), "per": Per(), "quotas": {}, **fields})


def test_wanted_headers_are_those_of_the_rules(clock: ManualClock) -> None:
    """Conditions, negated ones, dimensions and costs of the rules in service say which headers are kept."""
    rules = (
        rule(match=Match(headers={"X-A": None}, negate=Match(headers={"x-b": "1"}))),
        rule(per=Per(("ip", "header.X-C"))),
        rule(cost=CostFrom("X-D")),
        rule(match=Match(headers={"x-e": None}), mode=Mode.OFF),
    )
    assert headers_needed(rules) == {"x-a", "x-b", "x-c", "x-d"}
    config = IdentityConfig(user=HeaderSource("x-user-id"))
    checked = IdentityResolver.for_rules(RuleSet(rules, identity=config), clock=clock)
    assert checked.config is config
    assert facts_of(checked, [(b"X-A", b"1"), (b"X-Z", b"2")]).headers == {"x-a": "1"}
    assert IdentityResolver.for_rules(RuleSet(()), clock=clock).config == IdentityConfig()


HEADER = st.tuples(
    st.sampled_from([b"X-User-Id", b"x-api-key", b"X-Forwarded-For", b"Forwarded", b"X-Tier", b"Authorization"])
    | st.binary(max_size=12),
    st.binary(max_size=40) | st.sampled_from([b"1.2.3.4", b"for=1.2.3.4", b"8123", b"Bearer a.b.c"]),
)


@given(st.lists(HEADER, max_size=8), st.sampled_from([PROXY, STRANGER, "::1", None, "x"]))
def test_no_request_makes_it_fail(headers: list[tuple[bytes, bytes]], peer: str | None) -> None:
    """Whatever header lines arrive, facts come out, and from a stranger they hold the stranger's own address only."""
    checked = IdentityResolver(
        IdentityConfig(
            trusted_peers=resolver_networks(),
            user=HeaderSource("x-user-id"),
            tier=HeaderSource("x-tier"),
        ),
        clock=ManualClock(),
    )
    found = facts_of(checked, headers, peer)
    assert found.ip == checked.client_ip(headers, peer)
    if peer == STRANGER:
        assert (found.ip, found.user, found.tier) == (STRANGER, None, None)


def resolver_networks() -> Any:
    return IdentityConfig().trusted_peers.parse(["10.0.0.0/8"])


def test_memos_are_bounded() -> None:
    """Invented header names, identities and peers do not grow memory, and what is found stays right."""
    names = HeaderNames(frozenset({"x-a"}))
    for number in range(HEADER_NAMES_MEMO_MAX + 10):
        assert names[b"x-%d" % number] is None
        assert names[b"X-A"] == "x-a"
    assert len(names) <= HEADER_NAMES_MEMO_MAX
    assert names[b"x" * 10_000] is None
    assert b"x" * 10_000 not in names
    texts = IdentityTexts(IdentityStats())
    peers = PeerAddresses()
    for number in range(IDENTITY_MEMO_MAX + 10):
        assert texts[b"%d" % number] == str(number)
        assert peers[f"2001:db8::{number:x}"] is not None
    assert len(texts) <= IDENTITY_MEMO_MAX
    assert len(peers) <= IDENTITY_MEMO_MAX
