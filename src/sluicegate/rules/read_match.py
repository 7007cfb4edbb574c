"""Reads ``match:`` and ``per:``: which requests a rule is for, and what tells their clients apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address, ip_network
from types import MappingProxyType
from typing import Final

from sluicegate.bounds import ENTRY_VALUES_MAX, MATCH_VALUES_MAX, PER_DIMENSIONS_MAX
from sluicegate.rules.fields import Block, Place, kind_of, text_of, texts_of
from sluicegate.rules.model import Entry, Match, OnMissing, Per, Tiers
from sluicegate.rules.notation import shown, suggest
from sluicegate.rules.paths import parse_pattern
from sluicegate.rules.yaml_tree import Item

__all__ = ["CLIENT_DIMENSIONS", "TOKEN", "client_dimensions", "read_match", "read_per"]

_LISTS: Final = ("methods", "path", "host", "tier", "tenant", "user", "ip", "domain")
_FIELDS: Final = (*_LISTS, "headers", "descriptors", "entries", "authenticated", "not")
_ENTRY_EXAMPLE: Final = "{key: path, value: /login}"
_EXAMPLE: Final = "{methods: [POST], path: /login}"

TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
"""What RFC 9110 allows as a method or a header name."""

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE")
_KNOWN_METHODS: Final = frozenset(
    (
        *_METHODS,
        "PROPFIND",
        "PROPPATCH",
        "MKCOL",
        "COPY",
        "MOVE",
        "LOCK",
        "UNLOCK",
        "REPORT",
        "SEARCH",
        "PURGE",
        "QUERY",
    )
)
_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST: Final = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.ASCII)

_SIMPLE: Final = ("ip", "user", "api_key", "tenant", "tier", "host", "method", "endpoint", "path", "domain")
_PREFIXES: Final = ("header", "descriptor", "attrs")
CLIENT_DIMENSIONS: Final = frozenset(("ip", "user", "api_key", "tenant"))
_MEANT: Final = {"route": "endpoint", "client_ip": "ip", "address": "ip", "key": "api_key", "user_id": "user"}


def client_dimensions(per: Per) -> tuple[str, ...]:
    """The dimensions that tell clients apart: the four identities, and any header, descriptor or attribute."""
    return tuple(name for name in per.dimensions if name in CLIENT_DIMENSIONS or "." in name)


def read_match(item: Item, place: Place, tiers: Tiers, *, negated: bool = False) -> Match:
    """The conditions of a ``match:`` block, or of the ``not:`` block inside one."""
    block = Block.of(item, place, _FIELDS, _EXAMPLE)
    if block is None:
        return Match()
    checks: dict[str, Callable[[str], str]] = {
        "methods": _method,
        "path": _path,
        "host": _host,
        "ip": _network,
        "tier": lambda text: _tier(text, tiers),
    }
    lists: dict[str, tuple[str, ...]] = {}
    for name in _LISTS:
        values = [
            _checked(text, line, checks.get(name), place.child(name)) for text, line in block.texts(name, numbers=True)
        ]
        lists[name] = tuple(dict.fromkeys(value for value in values if value is not None))
    _warn_of_odd_methods(block, lists["methods"])
    entries = _entries(block)
    if entries and not lists["domain"]:
        block.add("entries", "name the domain, too: they are the entries of a descriptor, which has one")
    negate = None
    if "not" in block:
        if negated:
            block.add("not", "a not inside a not says the same as neither; write the condition itself")
        elif (inner := block.take("not")) is not None:
            negate = read_match(inner, place.child("not"), tiers, negated=True)
    return Match(
        **lists,
        headers=_texts_by_name(block, "headers", header=True),
        descriptors=_texts_by_name(block, "descriptors", header=False),
        authenticated=block.boolean("authenticated", default=False) if "authenticated" in block else None,
        negate=negate,
        entries=entries,
    )


class _Bad(ValueError):
    """A value of a list is no good; the message is for the operator."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


def _checked(text: str, line: int, check: Callable[[str], str] | None, place: Place) -> str | None:
    if check is None:
        return text
    try:
        return check(text)
    except _Bad as error:
        place.add(line, str(error), error.suggestion)
    return None


def _method(text: str) -> str:
    if not TOKEN.fullmatch(text):
        raise _Bad(f"{shown(text)} is not a method")
    return text.upper()


def _warn_of_odd_methods(block: Block, methods: tuple[str, ...]) -> None:
    for method in methods:
        if method not in _KNOWN_METHODS:
            hint = suggest(method, _METHODS)
            block.warn("methods", f"{shown(method)} is an unusual method; no common client sends it", hint)


def _path(text: str) -> str:
    try:
        parse_pattern(text)
    except ValueError as error:
        raise _Bad(str(error)) from None
    return text


def _host(text: str) -> str:
    host = text.lower()
    if host == "*" or _is_address(host, 4) or (host[:1] == "[" and host[-1:] == "]" and _is_address(host[1:-1], 6)):
        return host
    if _is_address(host, 6):
        raise _Bad(f"{shown(text)} needs brackets, as in a Host header", f"[{host}]")
    if _HOST.fullmatch(host) and len(host) <= 255:
        return host
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit():
        raise _Bad(f"{shown(text)} has a port; hosts are compared without it", name)
    if host.endswith(".") and _HOST.fullmatch(host[:-1]):
        raise _Bad(f"{shown(text)} ends in a dot; hosts are compared without it", host[:-1])
    if "://" in host:
        raise _Bad(f"{shown(text)} is a URL", host.split("://", 1)[1].split("/")[0])
    raise _Bad(f"{shown(text)} is not a host such as api.example.com or *.example.com")


def _is_address(text: str, version: int) -> bool:
    try:
        return ip_address(text).version == version
    except ValueError:
        return False


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        try:
            loose = str(ip_network(text, strict=False))
        except ValueError:
            raise _Bad(f"{shown(text)} is not an address or a network such as 10.0.0.0/8") from None
        raise _Bad(f"{shown(text)} has bits set beyond its prefix", loose) from None


def _tier(text: str, tiers: Tiers) -> str:
    if text not in tiers.names:
        known = f"known are {', '.join(tiers.names)}" if tiers.names else "the file declares no tiers"
        raise _Bad(f"unknown tier {shown(text)}; {known}", suggest(text, tiers.names))
    return text


def _texts_by_name(block: Block, field: str, *, header: bool) -> Mapping[str, str | None]:
    """A mapping of names to required values; a name without a value asks for mere presence."""
    item = block.take(field)
    if item is None:
        return MappingProxyType({})
    place = block.place.child(field)
    example = "{X-Debug: on}" if header else "{remote_address: 203.0.113.9}"
    if not isinstance(item.value, dict) or not item.value:
        place.add(item.line, f"expected a mapping such as {example}, got {kind_of(item) if item.value else 'nothing'}")
        return MappingProxyType({})
    if len(item.value) > MATCH_VALUES_MAX:
        place.add(item.line, f"has {len(item.value)} entries; at most {MATCH_VALUES_MAX} are allowed")
    found: dict[str, str | None] = {}
    for name, child in item.value.items():
        key = name.lower() if header else name
        at = place.child(shown(name)[1:-1])
        if header and not TOKEN.fullmatch(name):
            at.add(child.line, f"{shown(name)} is not a header name")
            continue
        if key in found:
            at.add(child.line, "is here twice; letter case does not tell headers apart")
        if isinstance(child.value, bool):
            at.add(child.line, f"put the text {child.text} in quotes, or give no value to ask for mere presence")
            continue
        found[key] = None if child.value is None else text_of(child, at, numbers=True)
    return MappingProxyType(found)


def _entries(block: Block) -> tuple[Entry, ...]:
    """``entries: [{key: a, value: x}, {key: b, not: [y, "z*"]}]``: all entries of a descriptor, in order."""
    item = block.take("entries")
    if item is None:
        return ()
    place = block.place.child("entries")
    if not isinstance(item.value, list) or not item.value:
        place.add(item.line, f"expected a list such as [{_ENTRY_EXAMPLE}], got {kind_of(item)}")
        return ()
    if len(item.value) > MATCH_VALUES_MAX:
        place.add(item.line, f"has {len(item.value)} entries; at most {MATCH_VALUES_MAX} are allowed")
        return ()
    found: list[Entry] = []
    for child in item.value:
        inner = Block.of(child, place, ("key", "value", "not"), _ENTRY_EXAMPLE)
        if inner is None:
            continue
        key = inner.text("key")
        value = inner.take("value")
        text = None if value is None else text_of(value, inner.place.child("value"), numbers=True)
        excluded = tuple(text for text, _ in inner.texts("not", numbers=True, most=ENTRY_VALUES_MAX))
        if key is None:
            if "key" not in inner:
                inner.add("key", "missing")
            continue
        if key in [entry.key for entry in found]:
            inner.add("key", f"{shown(key)} is here twice; a rule sees one value of a key")
        found.append(Entry(key, text, excluded))
    return tuple(found)


def read_per(rule: Block) -> Per:
    """The key of a rule: ``per:`` with ``on_missing:``, which may stand beside it or in its mapping form."""
    item = rule.take("per")
    if item is None:
        if "on_missing" in rule:
            rule.add("on_missing", "does nothing without per: there is no dimension to be missing")
        return Per()
    place = rule.place.child("per")
    first_of = isinstance(item.value, dict)
    holder = rule
    if first_of:
        inner = Block.of(item, place, ("first_of", "on_missing"), "{first_of: [user, ip]}")
        names_item = None if inner is None else inner.take("first_of")
        if inner is None or names_item is None:
            if inner is not None and "first_of" not in inner:
                place.add(item.line, "expected a list of dimensions, or {first_of: [...]}")
            return Per()
        if "on_missing" in inner and "on_missing" in rule:
            inner.add("on_missing", "is given twice: here and beside per")
        holder = inner if "on_missing" in inner else rule
        item, place = names_item, place.child("first_of")
    dimensions = [_dimension(text, line, place) for text, line in texts_of(item, place)]
    names = tuple(dict.fromkeys(name for name in dimensions if name is not None))
    if len(names) > PER_DIMENSIONS_MAX:
        place.add(item.line, f"has {len(names)} dimensions; at most {PER_DIMENSIONS_MAX} are allowed")
    on_missing = holder.choice("on_missing", OnMissing, OnMissing.SKIP)
    if on_missing is OnMissing.IP and "ip" in names:
        holder.add("on_missing", "ip is one of the dimensions already, so there is nothing to fall back on")
    return Per(names, first_of, on_missing)


def _dimension(text: str, line: int, place: Place) -> str | None:
    if text in _SIMPLE:
        return text
    prefix, dot, name = text.partition(".")
    if dot and prefix in _PREFIXES:
        if not name or (prefix == "header" and not TOKEN.fullmatch(name)):
            place.add(line, f"{shown(text)} names no {prefix}")
            return None
        return text.lower() if prefix == "header" else text
    if dot:
        hint = suggest(prefix, _PREFIXES)
        place.add(line, f"unknown dimension {shown(text)}", None if hint is None else f"{hint}.{name}")
    else:
        hint = _MEANT.get(text) or suggest(text, _SIMPLE)
        options = f"{', '.join(_SIMPLE)}, header.NAME, descriptor.KEY, attrs.NAME"
        place.add(line, f"unknown dimension {shown(text)}" + ("" if hint else f"; there are {options}"), hint)
    return None
