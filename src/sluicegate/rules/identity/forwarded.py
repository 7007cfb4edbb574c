"""The client's address behind trusted proxies.

Each proxy appends the address it was called from, so the right end of the list is the work of the nearest proxy and the
left end is whatever the client invented. The list is read from the right while the hops are trusted; the first address
that is not trusted is the client. Anything that is no address (``unknown``, an obfuscated ``_name``, garbage) ends the
walk, and the client is the last trusted hop: many clients may then share that address, but none can choose one.

``X-Forwarded-For`` and ``Forwarded`` (RFC 7239) together: a proxy that maintains one of them passes the other through as
the client sent it, and from here it cannot be told which. So where both are there and name different clients, neither
is believed and the client is the peer. Name one header in ``identity.ip.header`` to have only that one read.

``Forwarded`` is cut into elements from the right as well: a quote that the client opened and never closed then spoils the
client's own part of the list, not the part that a trusted proxy appended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

from sluicegate.bounds import FORWARDED_BYTES_MAX, FORWARDED_HOPS_MAX, FORWARDED_MEMO_BYTES_MAX, IP_MEMO_MAX
from sluicegate.rules.identity.addresses import Networks, canonical_ip
from sluicegate.rules.identity.stats import IdentityStats

__all__ = ["Chain", "forwarded_hops", "x_forwarded_for_hops"]

# RFC 7239 section 4, and a little more: an unquoted value may hold the colons and brackets it should have quoted.
_PAIR = re.compile(
    r"""[ \t]*(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s;,"]*))[ \t]*(?:;|\Z)""",
    re.ASCII,
)
_ESCAPE = re.compile(r"\\(.)")


class Chain(dict[bytes, "str | None"]):
    """Client addresses by the value of a forwarding header, as told by a trusted peer; a memo of bounded size.

    ``chain[value]`` is the canonical address, or None: the header names nobody beyond the peer. Several lines of the
    header are joined by commas, in order, before they get here.
    """

    __slots__ = ("_hops", "_stats", "_trusted")

    def __init__(self, header: str, trusted: Networks, stats: IdentityStats) -> None:
        self._hops: Callable[[str], Iterator[str]] = forwarded_hops if header == "forwarded" else x_forwarded_for_hops
        self._trusted = trusted
        self._stats = stats

    def __missing__(self, value: bytes) -> str | None:
        hops = self._hops(_last_part(value.decode("latin-1")))
        client: str | None = None
        for hop in islice(hops, FORWARDED_HOPS_MAX):
            try:
                address = canonical_ip(hop)
            except ValueError:
                # Not remembered: every such request counts.
                self._stats.forwarded_malformed += 1
                return client
            client = address
            if not self._trusted.contains(address):
                break
        else:
            if next(hops, None) is not None:
                self._stats.forwarded_too_long += 1
                return client
        if len(value) <= FORWARDED_MEMO_BYTES_MAX:
            if len(self) >= IP_MEMO_MAX:
                self.clear()
            self[value] = client
        return client


def x_forwarded_for_hops(text: str) -> Iterator[str]:
    """The entries of an ``X-Forwarded-For`` list from right to left; empty ones are left out (RFC 9110 5.6.1)."""
    end = len(text)
    while end >= 0:
        comma = text.rfind(",", 0, end)
        hop = text[comma + 1 : end].strip(" \t")
        if hop:
            yield hop
        end = comma


def forwarded_hops(text: str) -> Iterator[str]:
    """The ``for`` values of a ``Forwarded`` list from right to left, unquoted.

    An element without exactly one ``for``, or one that breaks the grammar, gives ``""``: a hop that hides.
    """
    for element in _elements(text):
        hop = element.strip(" \t")
        if hop:
            yield _node(hop)


def _elements(text: str) -> Iterator[str]:
    """Cut at the commas outside of quotes, from the right."""
    end = position = len(text)
    while True:
        comma = text.rfind(",", 0, position)
        quote = text.rfind('"', 0, position)
        if quote > comma:
            position = _opening_quote(text, quote)
            if position < 0:
                yield text[:end]
                return
            continue
        yield text[comma + 1 : end]
        if comma < 0:
            return
        end = position = comma


def _opening_quote(text: str, closing: int) -> int:
    """Where the quoted string that ends at ``closing`` begins, or -1."""
    quote = text.rfind('"', 0, closing)
    while quote > 0:
        backslashes = 0
        while backslashes < quote and text[quote - 1 - backslashes] == "\\":
            backslashes += 1
        if backslashes % 2 == 0:
            return quote
        quote = text.rfind('"', 0, quote)
    return quote


def _node(element: str) -> str:
    """The one ``for`` of an element, or "" where there is none, or more than one."""
    node = ""
    seen = 0
    position = 0
    while position < len(element):
        if element[position] in "; \t":
            position += 1
            continue
        pair = _PAIR.match(element, position)
        if pair is None:
            return ""
        if pair["name"].lower() == "for":
            seen += 1
            node = pair["bare"] if pair["quoted"] is None else _ESCAPE.sub(r"\1", pair["quoted"])
        position = pair.end()
    return node if seen == 1 else ""


def _last_part(text: str) -> str:
    """The right end of a list that is too long to look at, without the element that was cut in two."""
    if len(text) <= FORWARDED_BYTES_MAX:
        return text
    return text[-FORWARDED_BYTES_MAX:].partition(",")[2]
