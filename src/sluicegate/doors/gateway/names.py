"""What each header name means to a gateway, looked up once per spelling.

A memo maps the name exactly as it arrived to its kind, so the usual request costs one dictionary look-up per field. It is
bounded and emptied when full, because a client may make up names.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from sluicegate.bounds import GATEWAY_NAMES_MEMO_MAX
from sluicegate.doors.gateway.wire import Fields

__all__ = ["ConnectionOptions", "Kind", "Names", "connection_options", "request_names", "response_names"]


class Kind(IntEnum):
    """How a field is treated. PLAIN (0, the only false one) is passed on as it is."""

    PLAIN = 0
    HOST = 1
    LENGTH = 2
    CODING = 3
    CONNECTION = 4
    UPGRADE = 5
    EXPECT = 6
    ORIGIN = 7
    TE = 8
    KEEP_ALIVE = 9
    HOP = 10
    """Ends at this hop: dropped."""
    FORWARDED_FOR = 11
    FORWARDED_PROTO = 12
    FORWARDED_HOST = 13
    FORWARDED = 14
    FORWARDED_OTHER = 15
    """Says something of the client's connection: kept from trusted peers, dropped otherwise."""
    VIA = 16
    IDENTITY = 17
    """Says who the client is, by the rules: kept from trusted peers, dropped otherwise."""
    LOOKALIKE = 18
    """An underscore spelling that CGI-like backends cannot tell from a name that matters here: dropped."""
    RATE = 19
    """A rate header of the upstream: replaced by the gateway's own."""
    EXPOSE = 20


_HOP = dict.fromkeys(
    (b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"proxy", b"http2-settings"), Kind.HOP
)
_SHARED = {
    b"content-length": Kind.LENGTH,
    b"transfer-encoding": Kind.CODING,
    b"connection": Kind.CONNECTION,
    b"upgrade": Kind.UPGRADE,
    b"te": Kind.TE,
    b"keep-alive": Kind.KEEP_ALIVE,
    **_HOP,
}
_REQUEST = {
    **_SHARED,
    b"host": Kind.HOST,
    b"expect": Kind.EXPECT,
    b"origin": Kind.ORIGIN,
    b"x-forwarded-for": Kind.FORWARDED_FOR,
    b"x-forwarded-proto": Kind.FORWARDED_PROTO,
    b"x-forwarded-host": Kind.FORWARDED_HOST,
    b"forwarded": Kind.FORWARDED,
    b"x-forwarded-port": Kind.FORWARDED_OTHER,
    b"x-forwarded-prefix": Kind.FORWARDED_OTHER,
    b"x-forwarded-server": Kind.FORWARDED_OTHER,
    b"x-forwarded-ssl": Kind.FORWARDED_OTHER,
    b"x-forwarded-scheme": Kind.FORWARDED_OTHER,
    b"x-forwarded-uri": Kind.FORWARDED_OTHER,
    b"x-forwarded-method": Kind.FORWARDED_OTHER,
    b"x-real-ip": Kind.FORWARDED_OTHER,
    b"x-client-ip": Kind.FORWARDED_OTHER,
    b"true-client-ip": Kind.FORWARDED_OTHER,
    b"via": Kind.VIA,
}
_RESPONSE = {**_SHARED, b"access-control-expose-headers": Kind.EXPOSE}


class Names:
    """The kinds of one direction. ``kinds`` is the memo to read on the hot path; ``classify`` fills it."""

    __slots__ = ("_table", "kinds")

    def __init__(self, table: dict[bytes, Kind]) -> None:
        self._table = table
        self.kinds: dict[bytes, Kind] = {}

    def divide(self, fields: Fields, plain: Fields) -> list[tuple[Kind, bytes, bytes]]:
        """The fields that mean something to the gateway, with their kind, in order; the others are added to ``plain``."""
        kinds = self.kinds
        special: list[tuple[Kind, bytes, bytes]] = []
        for pair in fields:
            name = pair[0]
            kind = kinds.get(name)
            if kind is None:
                kind = self.classify(name)
            if kind:
                special.append((kind, name, pair[1]))
            else:
                plain.append(pair)
        return special

    def classify(self, name: bytes) -> Kind:
        """The kind of a name in any case; remembered under this spelling."""
        lower = name.lower()
        kind = self._table.get(lower, Kind.PLAIN)
        if b"_" in lower and not kind and self._table.get(lower.replace(b"_", b"-"), Kind.PLAIN):
            kind = Kind.LOOKALIKE
        if len(self.kinds) >= GATEWAY_NAMES_MEMO_MAX:
            self.kinds.clear()
        self.kinds[name] = kind
        return kind

    def may_be_dropped(self, name: bytes) -> bool:
        """Whether a ``Connection`` header may list this (lower-case) name as hop-by-hop.

        Not where the name means something here: ``Connection: X-Forwarded-For`` sent through a trusted proxy
        would otherwise erase who the client is (CVE-2022-31813).
        """
        return not self._table.get(name, Kind.PLAIN) and name not in _END_TO_END


_END_TO_END = frozenset(
    {b"authorization", b"cache-control", b"content-encoding", b"content-type", b"cookie", b"date", b"set-cookie"}
)


def request_names(identity: Iterable[bytes]) -> Names:
    """Names of requests; ``identity`` are the headers (lower case) that only trusted peers may set."""
    table = dict(_REQUEST)
    for name in identity:
        table.setdefault(name, Kind.IDENTITY)
        table.setdefault(name.replace(b"_", b"-"), Kind.IDENTITY)
    return Names(table)


def response_names(rate: Iterable[bytes]) -> Names:
    """Names of responses; ``rate`` are the rate headers (lower case) the gateway sets itself."""
    table = dict(_RESPONSE)
    for name in rate:
        table.setdefault(name, Kind.RATE)
    return Names(table)


class ConnectionOptions(NamedTuple):
    """What a ``Connection`` header says; ``listed`` are further names, lower case."""

    close: bool = False
    keep_alive: bool = False
    upgrade: bool = False
    listed: frozenset[bytes] = frozenset()


_options_memo: dict[bytes, ConnectionOptions] = {}
_TOKENS = frozenset({b"close", b"keep-alive", b"upgrade"})


def connection_options(value: bytes) -> ConnectionOptions:
    """Read a ``Connection`` value (several headers joined by commas)."""
    options = _options_memo.get(value)
    if options is None:
        tokens = frozenset(token.strip(b" \t").lower() for token in value.split(b",")) - {b""}
        options = ConnectionOptions(b"close" in tokens, b"keep-alive" in tokens, b"upgrade" in tokens, tokens - _TOKENS)
        if len(_options_memo) >= GATEWAY_NAMES_MEMO_MAX:
            _options_memo.clear()
        _options_memo[value] = options
    return options
