"""Attempts to be somebody else, or everybody: each ends at an address the client did not choose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.addresses import IpKeyer
from sluicegate.rules.identity.keys import hash_key
from sluicegate.rules.identity.resolver import Headers, IdentityResolver

Build = Callable[..., IdentityResolver]

PROXY = "10.0.0.1"
STRANGER = "198.51.100.66"
BLOCK = {
    "trusted_peers": ["10.0.0.0/8"],
    "user": {"header": "X-User-Id"},
    "api_key": {"header": "X-API-Key"},
    "tier": {"header": "X-Tier"},
}


def facts_of(resolver: IdentityResolver, headers: Headers, peer: str | None) -> Facts:
    return resolver.facts("GET", "/", None, headers, peer)


def test_random_keys_from_one_address_are_one_client(resolver: Build, tmp_path: Path) -> None:
    """10,000 invented keys, users and tiers from one address leave exactly one thing known: that address."""
    (tmp_path / "keys.txt").write_text(f"billing: {hash_key('s3cr3t')}\n")
    random = Random(7)
    by_header = resolver(BLOCK)
    by_file = resolver({"api_key": {"keys": "keys.txt"}})
    seen = set()
    for _ in range(10_000):
        invented = b"%x" % random.getrandbits(128)
        headers = [
            (b"X-API-Key", invented),
            (b"X-User-Id", invented),
            (b"X-Tier", b"paid"),
            (b"X-Forwarded-For", invented),
        ]
        seen.add(facts_of(by_header, headers, STRANGER))
        seen.add(facts_of(by_file, headers[:1], STRANGER))
    assert seen == {Facts(method="GET", path="/", ip=STRANGER)}
    assert by_header.stats.header_untrusted == 30_000
    assert by_file.stats.key_unknown == 10_000


def test_rotating_the_left_end_changes_nothing(resolver: Build) -> None:
    """P87: behind a proxy that appends, a client that invents hops stays one client, in both formats."""
    checked = resolver(BLOCK)
    random = Random(7)
    seen = set()
    for _ in range(1_000):
        forged = ".".join(str(random.randrange(256)) for _ in range(4))
        seen.add(facts_of(checked, [(b"X-Forwarded-For", f"{forged}, {STRANGER}".encode())], PROXY).ip)
        seen.add(facts_of(checked, [(b"Forwarded", f'for="{forged}";, for={STRANGER}'.encode())], PROXY).ip)
    assert seen == {STRANGER}


def test_a_victim_cannot_be_framed(resolver: Build) -> None:
    """P87: naming a victim's address, as the only hop, as many hops or from an untrusted peer, does not charge the victim."""
    checked = resolver(BLOCK)
    victim = b"203.0.113.9"
    assert facts_of(checked, [(b"X-Forwarded-For", victim)], STRANGER).ip == STRANGER
    assert facts_of(checked, [(b"Forwarded", b"for=" + victim)], STRANGER).ip == STRANGER
    appended = b", ".join([victim] * 40 + [STRANGER.encode()])
    assert facts_of(checked, [(b"X-Forwarded-For", appended)], PROXY).ip == STRANGER


def test_forging_trusted_hops_changes_nothing(resolver: Build) -> None:
    """Hops that look like trusted proxies do not help on the wrong side of the client's own address."""
    checked = resolver(BLOCK)
    chain = f"203.0.113.9, 10.0.0.7, {STRANGER}, 10.0.0.2".encode()
    assert facts_of(checked, [(b"X-Forwarded-For", chain)], PROXY).ip == STRANGER


@pytest.mark.parametrize(
    "lines",
    [
        [(b"X-Forwarded-For", STRANGER.encode()), (b"Forwarded", b"for=203.0.113.9")],
        [(b"Forwarded", f"for={STRANGER}".encode()), (b"X-Forwarded-For", b"203.0.113.9")],
        [(b"X-Forwarded-For", STRANGER.encode()), (b"Forwarded", b"for=unknown")],
        [(b"X-Forwarded-For", STRANGER.encode()), (b"Forwarded", b"")],
    ],
)
def test_the_header_the_proxy_does_not_set(resolver: Build, lines: Headers) -> None:
    """Two headers that disagree: one was passed through from the client, so neither is believed; the peer is counted."""
    checked = resolver(BLOCK)
    assert facts_of(checked, lines, PROXY).ip == PROXY
    assert checked.client_ip(lines, PROXY) == PROXY
    assert checked.stats.forwarded_conflict == 2


def test_the_two_headers_may_agree(resolver: Build) -> None:
    """A proxy that sets both headers names one client, in whatever spelling."""
    checked = resolver(BLOCK)
    lines = [(b"X-Forwarded-For", b"2001:DB8::1, 10.0.0.4"), (b"Forwarded", b'for="[2001:db8:0::1]:80"')]
    assert facts_of(checked, lines, PROXY).ip == "2001:db8::1"
    assert checked.stats.forwarded_conflict == 0


def test_one_header_can_be_named(resolver: Build) -> None:
    """With ``ip.header`` only that header is read, and the others do not even conflict."""
    lines = [
        (b"X-Forwarded-For", b"192.0.2.1"),
        (b"Forwarded", b"for=192.0.2.2"),
        (b"CF-Connecting-IP", STRANGER.encode()),
    ]
    for header, ip in [("CF-Connecting-IP", STRANGER), ("X-Forwarded-For", "192.0.2.1"), ("Forwarded", "192.0.2.2")]:
        assert facts_of(resolver(BLOCK | {"ip": {"header": header}}), lines, PROXY).ip == ip


@pytest.mark.parametrize(
    "name", [b"X_Forwarded_For", b"X-Forwarded_For", b"x_forwarded_for", b"X-Forwarded-For ", b"X-Real-IP"]
)
def test_names_that_only_look_alike(resolver: Build, name: bytes) -> None:
    """P89: underscores and other look-alikes never count, not even from a trusted peer."""
    assert facts_of(resolver(BLOCK), [(name, b"203.0.113.9")], PROXY).ip == PROXY


@pytest.mark.parametrize("name", [b"X_User_Id", b"X-User_Id", b"X-User-Id ", b"User-Id"])
def test_identity_names_that_only_look_alike(resolver: Build, name: bytes) -> None:
    """P89: a header with underscores is not the identity header, from whomever."""
    for peer in (PROXY, STRANGER):
        assert facts_of(resolver(BLOCK), [(name, b"victim")], peer).user is None


def test_rules_on_headers_do_not_see_forged_identities(resolver: Build) -> None:
    """A rule that matches or counts by an identity header sees it from trusted peers only."""
    checked = resolver(BLOCK, wanted=frozenset({"x-user-id", "x-forwarded-for", "x-cost"}))
    lines = [(b"X-User-Id", b"victim"), (b"X-Forwarded-For", b"1.2.3.4"), (b"X-Cost", b"1")]
    assert facts_of(checked, lines, STRANGER).headers == {"x-cost": "1"}
    assert facts_of(checked, lines, PROXY).headers == {
        "x-user-id": "victim",
        "x-forwarded-for": "1.2.3.4",
        "x-cost": "1",
    }


def test_an_ipv6_customer_is_one_client(resolver: Build) -> None:
    """T114, P90: 1,000 addresses of one /64, in every spelling, are one key behind a proxy and without one."""
    checked = resolver(BLOCK)
    key = IpKeyer().key
    random = Random(7)
    keys = set()
    for _ in range(1_000):
        address = f"2001:db8:0:1:{random.getrandbits(16):x}:{random.getrandbits(16):X}::{random.getrandbits(16):x}"
        for found in (
            facts_of(checked, [], address),
            facts_of(checked, [(b"X-Forwarded-For", f"[{address}]:1234".encode())], PROXY),
        ):
            assert found.ip is not None
            keys.add(key(found.ip))
    assert keys == {"2001:db8:0:1::/64"}
