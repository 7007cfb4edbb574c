"""IP addresses as keys: one text per client, whatever spelling, family or port it arrived in.

An address that has two spellings is two clients to a limiter, and an IPv6 customer owns 2^64 addresses.
So every address is brought to one canonical text, and a key is cut to a prefix (/64 for IPv6 by default).

Both lookups below are on every request, so each is the ``__getitem__`` of a dict whose ``__missing__`` computes
the answer: a hit never enters Python code. A full memo is emptied, never scanned: the cost of a flood of new
addresses stays one computation per address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import AF_INET, inet_pton
from typing import NamedTuple

from sluicegate.bounds import ADDRESS_CHARS_MAX, IP_MEMO_MAX, PARSED_ADDRESSES_MAX

__all__ = ["IPV4_BITS", "IPV6_BITS", "AddressNumbers", "Block", "IpKeyer", "Networks", "canonical_ip", "read_block"]

IPV4_BITS = 32
IPV6_BITS = 128

_MAPPED_PREFIX_BITS = 96
_V4_MASK = (1 << IPV4_BITS) - 1
# RFC 7239 section 6: a port is up to five digits, or an obfuscated name that begins with an underscore.
_PORT = re.compile(r"[0-9]{1,5}|_[A-Za-z0-9._-]+", re.ASCII)


def canonical_ip(text: str) -> str:
    """The one spelling of an IP address: lower case, compressed, no port, no zone, IPv4 where it is IPv4.

    Accepts surrounding blanks, a port (``1.2.3.4:5678``, ``[::1]:80``), brackets, the double quotes of ``Forwarded``
    (RFC 7239), a zone id (``fe80::1%eth0``, dropped: it means something only on the machine that wrote it) and
    IPv4-mapped IPv6 (``::ffff:1.2.3.4`` is ``1.2.3.4``). Idempotent.

    Raises ValueError for anything else: empty text, names, CIDR, decimal or octal IPv4 spellings.
    """
    return str(_parse(text))


class IpKeyer:
    """Turns address texts into counter keys; safe to share between threads.

    ``ipv4_prefix`` is 0..32 bits and ``ipv6_prefix`` 0..128 bits of the address that make one client.
    """

    __slots__ = ("ipv4_prefix", "ipv6_prefix", "key")

    key: Callable[[str], str]
    """``key(text) -> str``: ``203.0.113.9``, or ``2001:db8:1:2::/64`` where a prefix is cut.

    Takes every spelling of ``canonical_ip`` and raises ValueError for anything else.
    """

    def __init__(self, ipv4_prefix: int = 32, ipv6_prefix: int = 64) -> None:
        if not 0 <= ipv4_prefix <= IPV4_BITS:
            raise ValueError(f"ipv4_prefix must be 0..{IPV4_BITS}, got {ipv4_prefix}")
        if not 0 <= ipv6_prefix <= IPV6_BITS:
            raise ValueError(f"ipv6_prefix must be 0..{IPV6_BITS}, got {ipv6_prefix}")
        self.ipv4_prefix = ipv4_prefix
        self.ipv6_prefix = ipv6_prefix
        self.key = _Keys(ipv4_prefix, ipv6_prefix).__getitem__


class Networks:
    """An immutable set of CIDR blocks with a fast membership test; safe to share between threads.

    Families are apart: ``0.0.0.0/0`` holds no IPv6 address and ``::/0`` no IPv4 address. An IPv4-mapped block of
    at least /96 is the IPv4 block it means.
    """

    __slots__ = ("contains", "texts")

    contains: Callable[[str], bool]
    """``contains(text) -> bool``, for every spelling of ``canonical_ip``; False for what is no address."""

    texts: tuple[str, ...]
    """The blocks in canonical form, in the order given."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network] = ()) -> None:
        blocks = tuple(_unmapped(network) for network in networks)
        self.texts = tuple(str(block) for block in blocks)
        self.contains = _Members(blocks).__getitem__

    @classmethod
    def parse(cls, cidrs: Iterable[str]) -> Networks:
        """Parse CIDR texts; a bare address is a block of one.

        Raises ValueError naming the first bad text; a block with host bits set (``10.0.0.1/8``) is bad, because its
        writer meant either one host or another block.
        """
        return cls([_parse_block(cidr) for cidr in cidrs])

    def __bool__(self) -> bool:
        return bool(self.texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Networks) and self.texts == other.texts

    def __hash__(self) -> int:
        return hash(self.texts)

    def __repr__(self) -> str:
        return f"Networks({list(self.texts)!r})"


class Block(NamedTuple):
    """A CIDR block as numbers. ``shift``: how many low bits it ignores; ``prefix``: its address without them."""

    is_v6: bool
    shift: int
    prefix: int

    def __str__(self) -> str:
        """The canonical text: an address where the block is one, else a network."""
        if self.is_v6:
            address: IPv4Address | IPv6Address = IPv6Address(self.prefix << self.shift)
        else:
            address = IPv4Address(self.prefix << self.shift)
        return f"{address}/{address.max_prefixlen - self.shift}" if self.shift else str(address)


def read_block(cidr: str) -> Block:
    """The block of a CIDR text, or of one address; an IPv4-mapped one is the IPv4 block it means.

    Raises ValueError for anything else, and for a block with host bits set, as ``Networks.parse`` does.
    """
    number = _plain_v4(cidr)
    if number is not None:
        return Block(False, 0, number)
    network = _parse_block(cidr)
    shift = network.max_prefixlen - network.prefixlen
    return Block(isinstance(network, IPv6Network), shift, int(network.network_address) >> shift)


class AddressNumbers(dict[str, tuple[bool, int] | None]):
    """Memo from an address text as it arrived to (whether it is IPv6, its number); None for what is no address.

    Takes every spelling of ``canonical_ip``. Safe to share between threads.
    """

    __slots__ = ()

    def __missing__(self, text: str) -> tuple[bool, int] | None:
        number = _plain_v4(text)
        if number is not None:
            found: tuple[bool, int] | None = (False, number)
        else:
            try:
                address = _parse(text)
            except ValueError:
                found = None
            else:
                found = (isinstance(address, IPv6Address), int(address))
        if len(text) <= ADDRESS_CHARS_MAX:
            if len(self) >= IP_MEMO_MAX:
                self.clear()
            self[text] = found
        return found


class _Keys(dict[str, str]):
    """Memo from the text as it arrived to the key."""

    __slots__ = ("_drop_v4", "_drop_v6")

    def __init__(self, ipv4_prefix: int, ipv6_prefix: int) -> None:
        self._drop_v4 = IPV4_BITS - ipv4_prefix
        self._drop_v6 = IPV6_BITS - ipv6_prefix

    def __missing__(self, text: str) -> str:
        address = _parse(text)
        drop = self._drop_v4 if isinstance(address, IPv4Address) else self._drop_v6
        if drop:
            key = f"{type(address)(int(address) >> drop << drop)}/{address.max_prefixlen - drop}"
        else:
            key = str(address)
        if len(self) >= IP_MEMO_MAX:
            self.clear()
        self[text] = key
        return key


class _Members(dict[str, bool]):
    """Memo from the text as it arrived to membership; a miss costs one set lookup per distinct prefix length."""

    __slots__ = ("_v4", "_v6")

    def __init__(self, blocks: tuple[IPv4Network | IPv6Network, ...]) -> None:
        self._v4 = _by_shift(block for block in blocks if isinstance(block, IPv4Network))
        self._v6 = _by_shift(block for block in blocks if isinstance(block, IPv6Network))

    def __missing__(self, text: str) -> bool:
        try:
            address = _parse(text)
        except ValueError:
            return False
        number = int(address)
        tables = self._v4 if isinstance(address, IPv4Address) else self._v6
        found = any(number >> shift in values for shift, values in tables)
        if len(self) >= IP_MEMO_MAX:
            self.clear()
        self[text] = found
        return found


def _by_shift(blocks: Iterable[IPv4Network | IPv6Network]) -> tuple[tuple[int, frozenset[int]], ...]:
    """Blocks grouped by how many low bits they ignore."""
    grouped: dict[int, set[int]] = {}
    for block in blocks:
        shift = block.max_prefixlen - block.prefixlen
        grouped.setdefault(shift, set()).add(int(block.network_address) >> shift)
    return tuple((shift, frozenset(values)) for shift, values in sorted(grouped.items()))


@lru_cache(maxsize=PARSED_ADDRESSES_MAX)
def _parse(text: str) -> IPv4Address | IPv6Address:
    if len(text) > ADDRESS_CHARS_MAX:
        raise ValueError(f"an IP address has at most {ADDRESS_CHARS_MAX} characters, got {len(text)}")
    node = text.strip(" \t")
    if len(node) > 1 and node[0] == node[-1] == '"':
        node = node[1:-1].strip(" \t")
    host = _without_port(node, text)
    if "%" in host:
        host, _, zone = host.partition("%")
        if not zone or ":" not in host:
            raise ValueError(f"{text!r} is not an IP address")
    try:
        address = ip_address(host)
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address
    return address


def _without_port(node: str, text: str) -> str:
    """The host part of ``host``, ``host:port``, ``[host]`` or ``[host]:port``."""
    if node.startswith("["):
        host, bracket, rest = node[1:].partition("]")
        well_formed = bracket and ":" in host and (not rest or (rest[0] == ":" and _PORT.fullmatch(rest, 1)))
    elif node.count(":") == 1:
        host, _, port = node.partition(":")
        well_formed = _PORT.fullmatch(port)
    else:
        return node
    if not well_formed:
        raise ValueError(f"{text!r} is not an IP address")
    return host


def _plain_v4(text: str) -> int | None:
    """The number of the usual text, an IPv4 address in four decimals; None for every other, good or bad.

    A feed has a million of these, and this takes a tenth of the time.
    """
    try:
        return int.from_bytes(inet_pton(AF_INET, text))
    except (OSError, ValueError):
        return None


def _parse_block(cidr: str) -> IPv4Network | IPv6Network:
    try:
        return _unmapped(ip_network(cidr))
    except ValueError:
        pass
    try:
        meant = ip_network(cidr, strict=False)
    except ValueError:
        raise ValueError(f"{cidr!r} is not a network such as 10.0.0.0/8 or 2001:db8::/32") from None
    raise ValueError(f"{cidr!r} has host bits set; the network is {str(meant)!r}")


def _unmapped(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_PREFIX_BITS:
        first = network.network_address.ipv4_mapped
        if first is not None:
            return IPv4Network((int(first) & _V4_MASK, network.prefixlen - _MAPPED_PREFIX_BITS))
    return network
