"""The client's address behind trusted proxies: from the right, and never one that the client chose."""

from __future__ import annotations

import ipaddress
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import FORWARDED_BYTES_MAX, FORWARDED_HOPS_MAX, IP_MEMO_MAX
from sluicegate.rules.identity.addresses import Networks, canonical_ip
from sluicegate.rules.identity.forwarded import Chain, forwarded_hops, x_forwarded_for_hops
from sluicegate.rules.identity.stats import IdentityStats

TRUSTED = Networks.parse(["10.0.0.0/8", "fd00::/8"])


def client(header: str, value: str, stats: IdentityStats | None = None) -> str | None:
    return Chain(header, TRUSTED, stats or IdentityStats())[value.encode("latin-1")]


X_FORWARDED_FOR = [
    ("203.0.113.9", "203.0.113.9"),
    ("198.51.100.1, 203.0.113.9", "203.0.113.9"),
    ("198.51.100.1,203.0.113.9,10.0.0.2", "203.0.113.9"),
    ("198.51.100.1, 203.0.113.9 , 10.0.0.2, 10.0.0.3", "203.0.113.9"),
    ("203.0.113.9:4711, 10.0.0.2:80", "203.0.113.9"),
    ("[2001:DB8::1]:4711, fd00::2", "2001:db8::1"),
    ("::ffff:203.0.113.9, ::ffff:10.0.0.2", "203.0.113.9"),
    ("10.0.0.9, 10.0.0.2", "10.0.0.9"),
    ("203.0.113.9, , 10.0.0.2,", "203.0.113.9"),
    ("", None),
    (" , ,", None),
    ("unknown", None),
    ("203.0.113.9, unknown", None),
    ("203.0.113.9, unknown, 10.0.0.2", "10.0.0.2"),
    ("203.0.113.9, garbage, 10.0.0.2, 10.0.0.3", "10.0.0.2"),
    ("203.0.113.9, 999.1.1.1, 10.0.0.3", "10.0.0.3"),
    ("<script>", None),
    ("203.0.113.9; 10.0.0.2", None),
]


@pytest.mark.parametrize(("value", "expected"), X_FORWARDED_FOR)
def test_x_forwarded_for(value: str, expected: str | None) -> None:
    """P87: the first address from the right that is not trusted; what is no address ends the walk before it."""
    assert client("x-forwarded-for", value) == expected


FORWARDED = [
    ("for=203.0.113.9", "203.0.113.9"),
    ("For=203.0.113.9;proto=https;by=10.0.0.1", "203.0.113.9"),
    ("by=10.0.0.1;for=203.0.113.9", "203.0.113.9"),
    ("for=198.51.100.1, for=203.0.113.9, for=10.0.0.2", "203.0.113.9"),
    ('for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::17"),
    ("for=[2001:db8::1]", "2001:db8::1"),
    ('for="203.0.113.9:8080";proto=http , for=10.0.0.2', "203.0.113.9"),
    (r'for="203.0.113\.9"', "203.0.113.9"),
    ('for=203.0.113.9;host="a,b;c\\"d,for=10.0.0.7", for=10.0.0.2', "203.0.113.9"),
    ('for="203.0.113.9:_port"', "203.0.113.9"),
    ("for=203.0.113.9 ; proto=http", "203.0.113.9"),
    ("for=203.0.113.9;;proto=http;", "203.0.113.9"),
    ("for=unknown", None),
    ("for=_hidden, for=10.0.0.2", "10.0.0.2"),
    ('for="_SEVKISEK", for=10.0.0.2', "10.0.0.2"),
    ("proto=https", None),
    ("proto=https, for=10.0.0.2", "10.0.0.2"),
    ("for=203.0.113.9;for=198.51.100.1", None),
    ("for=203.0.113.9 for=198.51.100.1", None),
    ("203.0.113.9", None),
    ("for", None),
    ("for=", None),
    ("=203.0.113.9", None),
    ('for="203.0.113.9', None),
    ('for=203.0.113.9"', None),
    ('for="', None),
    ('"', None),
    ("", None),
]


@pytest.mark.parametrize(("value", "expected"), FORWARDED)
def test_forwarded(value: str, expected: str | None) -> None:
    """RFC 7239: quoted strings, hidden and unknown nodes, ports, several elements; a broken element hides its hop."""
    assert client("forwarded", value) == expected


@pytest.mark.parametrize(
    "forged",
    ['for="', 'for="198.51.100.1', "for=198.51.100.1;x=", r'for="\\\"', '"', r"for=\"", ",,,", 'for="a,for="b', "\x00"],
)
def test_forged_left_part_does_not_reach_the_right_part(forged: str) -> None:
    """A quote the client left open spoils its own part of the list, not what the trusted proxy appended."""
    assert client("forwarded", f"{forged}, for=203.0.113.9") == "203.0.113.9"
    assert client("forwarded", f'{forged}, for="[2001:db8::9]:80", for=10.0.0.2') == "2001:db8::9"


ADDRESS = st.ip_addresses().map(str) | st.sampled_from(["10.0.0.1", "10.1.2.3", "fd00::1"])
HOP = ADDRESS | st.text(max_size=12) | st.sampled_from(["unknown", "_x", "", "10.0.0.1:80", 'for="', "for=10.0.0.1"])


def addresses_in(hops: list[str]) -> set[str]:
    found = set()
    for hop in hops:
        try:
            found.add(canonical_ip(hop))
        except ValueError:
            continue
    return found


@given(st.lists(HOP, max_size=8))
def test_x_forwarded_for_never_invents(hops: list[str]) -> None:
    """Any list gives an address that stands in it, or nobody; no text makes the reading fail."""
    value = ",".join(hops).encode("utf-8", "replace")
    result = Chain("x-forwarded-for", TRUSTED, IdentityStats())[value]
    assert result is None or result in addresses_in(value.decode("latin-1").split(","))


@given(st.lists(HOP, max_size=6), ADDRESS.filter(lambda text: not TRUSTED.contains(text)), st.booleans())
def test_the_appended_address_wins(forged: list[str], real: str, quoted: bool) -> None:
    """P87: whatever a client sends, behind a proxy that appends its address it is that address."""
    node = f'"[{real}]"' if ":" in real else (f'"{real}"' if quoted else real)
    x_value = ", ".join([*forged, real]).encode("utf-8", "replace")
    f_value = ", ".join([*forged, f"for={node}"]).encode("utf-8", "replace")
    assert Chain("x-forwarded-for", TRUSTED, IdentityStats())[x_value] == canonical_ip(real)
    assert Chain("forwarded", TRUSTED, IdentityStats())[f_value] == canonical_ip(real)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(value: bytes) -> None:
    """Arbitrary bytes give an address or nobody in both formats."""
    for header in ("x-forwarded-for", "forwarded"):
        result = Chain(header, TRUSTED, IdentityStats())[value]
        assert result is None or str(ipaddress.ip_address(result)) == result


@given(st.lists(st.ip_addresses(), min_size=1, max_size=6))
def test_both_formats_agree(addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> None:
    """The same hops written in either format name the same client."""
    x_value = ", ".join(str(address) for address in addresses)
    f_value = ", ".join(f'for="[{a}]:80"' if a.version == 6 else f"for={a}" for a in addresses)
    assert client("x-forwarded-for", x_value) == client("forwarded", f_value)


def test_a_long_chain_of_trusted_hops_ends() -> None:
    """No more than the stated number of hops is followed; the client is then the last trusted one, and it is counted."""
    stats = IdentityStats()
    hops = [f"10.0.1.{number}" for number in range(FORWARDED_HOPS_MAX + 1)]
    assert client("x-forwarded-for", ", ".join(["203.0.113.9", *hops]), stats) == "10.0.1.1"
    assert stats.forwarded_too_long == 1
    assert client("x-forwarded-for", ", ".join(["203.0.113.9", *hops[2:]]), stats) == "203.0.113.9"
    assert stats.forwarded_too_long == 1


def test_a_long_header_is_read_from_its_right_end() -> None:
    """A megabyte of forged hops costs no more than the bound, and the element cut in two is not read."""
    forged = ", ".join(["198.51.100.1"] * 80_000)
    assert client("x-forwarded-for", f"{forged}, 203.0.113.9, 10.0.0.2") == "203.0.113.9"
    cut = "1.2.3.4" + " " * (FORWARDED_BYTES_MAX - len(",10.0.0.2") - 3) + ",10.0.0.2"
    assert len(cut) > FORWARDED_BYTES_MAX
    assert client("x-forwarded-for", cut) == "10.0.0.2"


def test_malformed_chains_are_counted_each_time() -> None:
    """A chain that ends in something else than an address is counted on every request, not only on the first."""
    stats = IdentityStats()
    chain = Chain("x-forwarded-for", TRUSTED, stats)
    assert [chain[b"unknown"], chain[b"unknown"], chain[b"203.0.113.9"]] == [None, None, "203.0.113.9"]
    assert stats.forwarded_malformed == 2


def test_chains_remembered_are_bounded() -> None:
    """However many chains come by, no more than the stated number is remembered."""
    chain = Chain("x-forwarded-for", TRUSTED, IdentityStats())
    for number in range(IP_MEMO_MAX + 10):
        address = str(ipaddress.IPv4Address(0xCB000000 + number))
        assert chain[address.encode()] == address
    assert 0 < len(chain) <= IP_MEMO_MAX
    long_value = b"203.0.113.9" + b" " * 1_000
    assert chain[long_value] == "203.0.113.9"
    assert long_value not in chain


def test_hops_are_lazy() -> None:
    """Only the hops that are asked for are cut out of the list."""
    text = ",".join(str(number) for number in range(1_000))
    assert list(islice(x_forwarded_for_hops(text), 2)) == ["999", "998"]
    assert list(islice(forwarded_hops("for=a,for=b,for=c"), 2)) == ["c", "b"]
