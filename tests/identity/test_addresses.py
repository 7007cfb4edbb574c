"""One text and one key per client, whatever spelling its address arrived in."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.bounds import ADDRESS_CHARS_MAX, IP_MEMO_MAX
from sluicegate.rules.identity import addresses
from sluicegate.rules.identity.addresses import AddressNumbers, IpKeyer, Networks, canonical_ip, read_block

SPELLINGS = [
    ("203.0.113.9", "203.0.113.9"),
    ("203.0.113.9:5678", "203.0.113.9"),
    ("203.0.113.9:_gazonk", "203.0.113.9"),
    ("  203.0.113.9\t", "203.0.113.9"),
    ('"203.0.113.9:80"', "203.0.113.9"),
    ("::ffff:203.0.113.9", "203.0.113.9"),
    ("::FFFF:203.0.113.9", "203.0.113.9"),
    ("::ffff:cb00:7109", "203.0.113.9"),
    ("[::ffff:203.0.113.9]:443", "203.0.113.9"),
    ("0:0:0:0:0:ffff:203.0.113.9", "203.0.113.9"),
    ("2001:DB8::A", "2001:db8::a"),
    ("2001:0db8:0000:0000:0000:0000:0000:000a", "2001:db8::a"),
    ("[2001:db8::a]", "2001:db8::a"),
    ("[2001:db8::a]:80", "2001:db8::a"),
    ('"[2001:db8::a]:4711"', "2001:db8::a"),
    ('"[2001:db8::a]:_x.y-z"', "2001:db8::a"),
    ("::1", "::1"),
    ("fe80::1%eth0", "fe80::1"),
    ("[fe80::1%25eth0]:80", "fe80::1"),
    ("::", "::"),
]

GARBAGE = [
    "",
    " ",
    '""',
    '"',
    "[]",
    "unknown",
    "_hidden",
    "localhost",
    "1.2.3",
    "1.2.3.4.5",
    "1.2.3.256",
    "01.2.3.4",
    "0x7f.0.0.1",
    "2130706433",
    "1.2.3.4/32",
    "1.2.3.4:",
    "1.2.3.4:123456",
    "1.2.3.4:8o",
    "1.2.3.4:-1",
    "[1.2.3.4]",
    "[1.2.3.4]:80",
    "1.2.3.4%eth0",
    "fe80::1%",
    "[::1",
    "::1]",
    "[::1]80",
    "[::1]:",
    "[::1]:x",
    "[[::1]]",
    "::1::2",
    ":::1",
    "2001:db8::g",
    "1.2.3.4, 5.6.7.8",
    "1.2.3.4\x00",
    "1.2.3.4\n",
    "\u0661.2.3.4",
    "\uff11.2.3.4",
    "1" * (ADDRESS_CHARS_MAX + 1),
    "fe80::1%" + "z" * ADDRESS_CHARS_MAX,
]


@pytest.mark.parametrize(("text", "canonical"), SPELLINGS)
def test_every_spelling_has_one_canonical_text(text: str, canonical: str) -> None:
    """T114, P90: case, zeros, ports, brackets, quotes, zone ids and IPv4-mapped IPv6 do not make another client."""
    assert canonical_ip(text) == canonical


@pytest.mark.parametrize("text", GARBAGE)
def test_what_is_no_address_is_refused(text: str) -> None:
    """P90: nothing but an address has a canonical text, so garbage never becomes a key."""
    with pytest.raises(ValueError, match="IP address"):
        canonical_ip(text)
    with pytest.raises(ValueError, match="IP address"):
        IpKeyer().key(text)
    assert not Networks.parse(["0.0.0.0/0", "::/0"]).contains(text)


@given(st.ip_addresses())
def test_canonical_agrees_with_ipaddress(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """For every address the canonical text is that of ``ipaddress``, mapped IPv4 unwrapped, and it is a fixed point."""
    canonical = canonical_ip(str(address))
    mapped = getattr(address, "ipv4_mapped", None)
    assert ipaddress.ip_address(canonical) == (mapped or address)
    assert canonical_ip(canonical) == canonical


@given(st.ip_addresses(v=6), st.sampled_from(["exploded", "upper", "port", "zone", "quoted"]))
def test_spellings_of_ipv6_agree(address: ipaddress.IPv6Address, spelling: str) -> None:
    """Every way to write an IPv6 address gives the same key."""
    text = {
        "exploded": address.exploded,
        "upper": str(address).upper(),
        "port": f"[{address}]:8080",
        "zone": f"{address}%eth0",
        "quoted": f'"[{address}]"',
    }[spelling]
    assert canonical_ip(text) == canonical_ip(str(address))
    assert IpKeyer().key(text) == IpKeyer().key(str(address))


@given(st.text(max_size=60))
def test_canonical_never_fails_otherwise(text: str) -> None:
    """Any text gives a canonical address or ValueError, nothing else."""
    try:
        canonical = canonical_ip(text)
    except ValueError:
        return
    assert str(ipaddress.ip_address(canonical)) == canonical


def test_ipv6_clients_are_keyed_by_their_64() -> None:
    """T114, P90: the 2^64 addresses of one customer are one key, the next customer's another; IPv4 is whole."""
    key = IpKeyer().key
    assert key("2001:db8:1:2::1") == key("2001:db8:1:2:ffff:ffff:ffff:ffff") == "2001:db8:1:2::/64"
    assert key("2001:db8:1:3::1") != key("2001:db8:1:2::1")
    assert key("203.0.113.9") == key("::ffff:203.0.113.9") == "203.0.113.9"


@given(st.ip_addresses(), st.integers(0, 32), st.integers(0, 128))
def test_key_is_the_network_of_the_prefix(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, ipv4_prefix: int, ipv6_prefix: int
) -> None:
    """T114: both prefixes are settable, and a key names exactly the network of that length."""
    address = getattr(address, "ipv4_mapped", None) or address
    prefix = ipv4_prefix if address.version == 4 else ipv6_prefix
    key = IpKeyer(ipv4_prefix, ipv6_prefix).key(str(address))
    network = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
    assert key == (str(address) if prefix == address.max_prefixlen else str(network))


@pytest.mark.parametrize("prefixes", [(-1, 64), (33, 64), (32, -1), (32, 129)])
def test_prefixes_out_of_range_are_refused(prefixes: tuple[int, int]) -> None:
    """A prefix longer than the address, or negative, is an error and not a silent default."""
    with pytest.raises(ValueError, match="must be 0"):
        IpKeyer(*prefixes)


def test_memo_is_bounded() -> None:
    """However many addresses come by, no more than the stated number is remembered, and keys stay right."""
    keyer = IpKeyer()
    for number in range(IP_MEMO_MAX + 100):
        text = str(ipaddress.IPv4Address(number))
        assert keyer.key(text) == text
    memo: dict[str, str] = keyer.key.__self__  # type: ignore[attr-defined]
    assert 0 < len(memo) <= IP_MEMO_MAX
    networks = Networks.parse(["0.0.0.0/24"])
    found = sum(networks.contains(str(ipaddress.IPv4Address(number))) for number in range(IP_MEMO_MAX + 100))
    assert found == 256
    assert len(networks.contains.__self__) <= IP_MEMO_MAX  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cidrs", "inside", "outside"),
    [
        (
            ["10.0.0.0/8"],
            ["10.0.0.1", "10.255.255.255", "::ffff:10.1.2.3", "10.1.1.1:80"],
            ["11.0.0.0", "9.9.9.9", "::1"],
        ),
        (["192.0.2.7"], ["192.0.2.7"], ["192.0.2.6", "192.0.2.8"]),
        (["2001:db8::/32"], ["2001:DB8:ffff::1", "[2001:db8::1]:80"], ["2001:db9::", "10.0.0.1"]),
        (["::ffff:10.0.0.0/104"], ["10.0.0.1"], ["11.0.0.1", "::1"]),
        (["0.0.0.0/0"], ["0.0.0.0", "255.255.255.255"], ["::", "::1"]),
        (["::/0"], ["::", "ffff::"], ["1.2.3.4", "::ffff:1.2.3.4"]),
        (["10.0.0.0/8", "10.0.0.0/16", "127.0.0.1"], ["10.0.0.1", "10.9.0.1", "127.0.0.1"], ["127.0.0.2"]),
        ([], [], ["1.2.3.4", "::1"]),
    ],
)
def test_networks_hold_what_they_say(cidrs: list[str], inside: list[str], outside: list[str]) -> None:
    """Membership is by address and not by text, for both families, at the edges of each block."""
    networks = Networks.parse(cidrs)
    assert [text for text in inside if not networks.contains(text)] == []
    assert [text for text in outside if networks.contains(text)] == []
    assert bool(networks) is bool(cidrs)


@given(st.lists(st.ip_addresses(v=4), max_size=5), st.integers(0, 32), st.ip_addresses(v=4))
def test_networks_agree_with_ipaddress(
    bases: list[ipaddress.IPv4Address], prefix: int, address: ipaddress.IPv4Address
) -> None:
    """Membership is that of ``ipaddress``, asked the first time and from the memo."""
    blocks = [ipaddress.ip_network(f"{base}/{prefix}", strict=False) for base in bases]
    networks = Networks.parse([str(block) for block in blocks])
    expected = any(address in block for block in blocks)
    assert [networks.contains(str(address)), networks.contains(str(address))] == [expected, expected]


@pytest.mark.parametrize(
    ("cidr", "message"),
    [
        ("10.0.0.1/8", "'10.0.0.1/8' has host bits set; the network is '10.0.0.0/8'"),
        ("10.0.0.0/33", "'10.0.0.0/33' is not a network"),
        ("example.org", "'example.org' is not a network"),
        ("", "'' is not a network"),
    ],
)
def test_bad_networks_are_named(cidr: str, message: str) -> None:
    """A bad block is an error that shows it, and the block that was probably meant."""
    with pytest.raises(ValueError, match=message):
        Networks.parse(["10.0.0.0/8", cidr])


def test_networks_compare_by_content() -> None:
    """Equal lists of blocks are equal, so that settings can be compared."""
    assert Networks.parse(["10.0.0.0/8"]) == Networks.parse(["10.0.0.0/8"])
    assert hash(Networks.parse(["10.0.0.0/8"])) == hash(Networks.parse(["10.0.0.0/8"]))
    assert Networks.parse(["10.0.0.0/8"]) != Networks.parse(["10.0.0.0/16"])
    assert Networks.parse(["10.0.0.0/8"]) != "10.0.0.0/8"
    assert repr(Networks.parse(["10.0.0.0/8"])) == "Networks(['10.0.0.0/8'])"


def test_a_new_address_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, key and membership of a new address are worked out from one parse of it."""
    parsed: list[str] = []
    parse = ipaddress.ip_address
    networks = Networks.parse(["2001:db8:77::/48"])

    def counted(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(addresses, "ip_address", counted)
    new = "2001:db8:77:1::1"
    assert canonical_ip(new) == new
    assert IpKeyer().key(new) == "2001:db8:77:1::/64"
    assert networks.contains(new)
    assert parsed == [new]


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**128 - 1), st.integers(0, 128), st.booleans())
def test_a_block_is_the_network_it_names(number: int, bits: int, v6: bool) -> None:
    """A block read from any canonical network holds the same addresses and is written the same."""
    network: Any
    if v6:
        network = ipaddress.IPv6Network((number >> (128 - bits) << (128 - bits), bits))
    else:
        bits = bits % 33
        network = ipaddress.IPv4Network((number % 2**32 >> (32 - bits) << (32 - bits), bits))
    block = read_block(str(network))
    (same,) = Networks([network]).texts
    wanted = ipaddress.ip_network(same)
    assert block.is_v6 == (wanted.version == 6)
    assert (block.shift, block.prefix << block.shift) == (
        wanted.max_prefixlen - wanted.prefixlen,
        int(wanted.network_address),
    )
    assert str(block) == (same if wanted.prefixlen < wanted.max_prefixlen else str(wanted.network_address))
    assert read_block(str(block)) == block


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1/8", "10.0.0.0/33", "nonsense", "1.2.3", "01.2.3.4", "1.2.3.4 ", "1.2.3.4\x00"]
)
def test_what_is_no_block_is_refused(text: str) -> None:
    """Names, host bits, short and octal spellings are errors, as they are for a rule's networks."""
    with pytest.raises(ValueError, match="network"):
        read_block(text)
    with pytest.raises(ValueError, match="network"):
        Networks.parse([text])


@given(
    st.ip_addresses().map(str)
    | st.text(max_size=30)
    | st.sampled_from(["[::1]:80", "::ffff:1.2.3.4", "1.2.3.4:5", '"1.2.3.4"', "1.2.3.4 "])
)
def test_the_number_of_an_address_is_that_of_its_one_spelling(text: str) -> None:
    """What ``canonical_ip`` reads has the number of its canonical text, and what it does not has none; asked again it is the same."""
    numbers = AddressNumbers()
    try:
        address = ipaddress.ip_address(canonical_ip(text))
    except ValueError:
        assert numbers[text] is numbers[text] is None
        return
    assert numbers[text] == numbers[text] == (address.version == 6, int(address))


def test_a_full_memo_of_numbers_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of addresses takes no more memory than the bound, and nothing that is too long to be one is kept."""
    monkeypatch.setattr("sluicegate.rules.identity.addresses.IP_MEMO_MAX", 3)
    numbers = AddressNumbers()
    for number in range(10):
        assert numbers[f"10.0.0.{number}"] == (False, 0x0A000000 + number)
        assert len(numbers) <= 3
    before = len(numbers)
    assert numbers["1" * 1_000] is None
    assert len(numbers) == before
