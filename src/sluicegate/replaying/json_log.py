"""Lines that are JSON objects, as nginx, Caddy, Traefik, Envoy and applications write them.

No two programs agree on names, so each fact has a list of names, the most particular first, and what was found once is
looked for there first. ``--map FIELD=FACT`` names the field instead.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, Final

import msgspec

from sluicegate.errors import ConfigurationError
from sluicegate.replaying.bad_line import BadLine
from sluicegate.replaying.request_line import ABSENT, Client, RequestLine, client_of, request_line, target_of
from sluicegate.replaying.times import time_us
from sluicegate.rules.facts import Facts

__all__ = ["JsonParser", "parse_map"]

_MAPS: Final = {"header.": "headers", "attrs.": "attrs", "descriptor.": "descriptors"}

_NAMES: Final[dict[str, str]] = {
    "time": "time ts timestamp @timestamp time_iso8601 msec time_local StartUTC start_time datetime date",
    "request": "request request_line requestline",
    "method": "method request_method http_method verb RequestMethod request.method http.request.method httpRequest.requestMethod",
    "path": "path uri request_uri url target request_path RequestPath request.uri url.original url.path httpRequest.requestUrl",
    "ip": "client_ip remote_addr remote_ip ip clientip client remote_host ClientHost client.ip source.ip request.client_ip "
    "request.remote_ip request.remote_addr httpRequest.remoteIp downstream_remote_address",
    "host": "host http_host server_name vhost authority RequestHost request.host url.domain",
    "user": "user remote_user user_id username auth_user ClientUsername user.name",
}

_Path = tuple[str, ...]


class JsonParser:
    """Reads the ``needed`` facts of lines. ``names``: fields that stand for facts, as ``parse_map`` gives them."""

    __slots__ = ("_decode", "_fields", "_headers", "_request", "_time")

    def __init__(self, needed: Collection[str], names: Mapping[str, str]) -> None:
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode
        self._time = _Field(_paths("time", names))
        # A whole request line is looked at where there is no field for its parts.
        self._request = _Field(_paths("request", names)) if {"method", "path"} & set(needed) else None
        wanted = {name for name in needed if name not in {"ip", "method", "path"}}
        order = ("ip", "method", "path", *sorted(wanted))
        self._fields = [(name, _Field(_paths(name, names))) for name in order if name == "ip" or name in needed]
        self._headers = [
            name.removeprefix("header.") for name in sorted(wanted) if name.startswith("header.") and name not in names
        ]

    def read(self, line: str) -> tuple[int, Hashable]:
        """The time of a line and what else is needed of it, for ``facts``. Raises BadLine."""
        try:
            record = self._decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadLine(f"no JSON object: {error}") from None
        except UnicodeEncodeError:
            raise BadLine("no JSON object: it is not UTF-8") from None
        time = self._time.value(record)
        if time is None:
            raise BadLine("no time: name its field with --map FIELD=time")
        try:
            now_us = time_us(time)
        except ValueError as error:
            raise BadLine(str(error)) from None
        key = [field.text(record) for _, field in self._fields]
        key.append(None if self._request is None else self._request.text(record))
        key += [_header(record, name) for name in self._headers]
        return now_us, tuple(key)

    def facts(self, key: Any) -> tuple[Facts, Client]:
        """The facts of all lines with this key. Raises BadLine where the client is no client."""
        texts: dict[str, str | None] = dict(zip((name for name, _ in self._fields), key, strict=False))
        count = len(self._fields)
        client = client_of(texts.pop("ip") or "")
        request = _request(texts.pop("method", None), texts.pop("path", None), key[count])
        known: dict[str, Any] = {"host": request.host}
        for name, text in zip(self._headers, key[count + 1 :], strict=True):
            if text is not None:
                known.setdefault("headers", {})[name] = text
        for name, text in texts.items():
            if text is not None and text not in ABSENT:
                prefix = next((prefix for prefix in _MAPS if name.startswith(prefix)), None)
                if prefix is None:
                    known[name] = text
                else:
                    known.setdefault(_MAPS[prefix], {})[name.removeprefix(prefix)] = text
        return Facts(method=request.method, path=request.path, ip=client.ip, **known), client


def parse_map(items: Iterable[str]) -> dict[str, str]:
    """``FIELD=FACT`` texts as a mapping from fact to field. Raises ConfigurationError for what is none."""
    names: dict[str, str] = {}
    plain = {"time", "request", *Facts.__struct_fields__} - set(_MAPS.values())
    for item in items:
        field, _, fact = item.rpartition("=")
        if fact.startswith("header."):
            fact = fact.lower()
        known = fact in plain or any(fact.startswith(prefix) and fact != prefix for prefix in _MAPS)
        if not field or not known:
            facts = ", ".join(sorted(plain))
            raise ConfigurationError(
                f"--map {item!r}: want FIELD=FACT, where FACT is one of {facts}, header.NAME, attrs.NAME, descriptor.NAME"
            )
        names[fact] = field
    return names


class _Field:
    """Where one fact may stand, in the order in which to look; a place that was good once comes first."""

    __slots__ = ("_paths",)

    def __init__(self, paths: list[_Path]) -> None:
        self._paths = paths

    def value(self, record: dict[str, Any]) -> str | float | None:
        """The text or number of the first place that has one."""
        for index, path in enumerate(self._paths):
            value: Any = record
            for step in path:
                value = value.get(step) if type(value) is dict else None
            if (type(value) is str and value) or type(value) is int or type(value) is float:
                if index:
                    self._paths.insert(0, self._paths.pop(index))
                return value
        return None

    def text(self, record: dict[str, Any]) -> str | None:
        """``value`` as text."""
        value = self.value(record)
        if value is None or isinstance(value, str):
            return value
        return str(value)


def _paths(fact: str, names: Mapping[str, str]) -> list[_Path]:
    """The places of a fact. A name with points is a field of that name, or fields inside fields."""
    given = names.get(fact)
    known = [given] if given is not None else _NAMES.get(fact, fact).split()
    paths: list[_Path] = []
    for name in known:
        paths.append((name,))
        if "." in name:
            paths.append(tuple(name.split(".")))
    return paths


def _header(record: dict[str, Any], name: str) -> str | None:
    """A header: a field of nginx's name for it, of its own name, or an entry of ``headers``; of several values the first."""
    variable = name.replace("-", "_")
    for field in (f"http_{variable}", variable, name, f"request_{name.title()}"):
        value = record.get(field)
        if type(value) is str and value not in ABSENT:
            return value
    request = record.get("request")
    for holder in (record, request if type(request) is dict else {}):
        headers = holder.get("headers")
        if type(headers) is dict:
            for spelling, value in headers.items():
                if spelling.lower() == name:
                    value = value[0] if type(value) is list and value else value
                    return value if type(value) is str else None
    return None


def _request(method: str | None, target: str | None, line: str | None) -> RequestLine:
    """The parts from their own fields, else from the whole line."""
    whole = RequestLine() if line is None else request_line(line)
    if target is None:
        return whole if method is None else whole._replace(method=method)
    own = target_of(method, target)
    return own if own.method is not None else own._replace(method=method or whole.method)
