"""The route template of a request, found as Starlette's router finds the route, before it does.

The table is made from the routes of an application: those of mounted applications and included routers too, in the router's
order. The first route whose path and method fit wins, else the first whose path fits; the routes of a host are looked at for requests
to it. What is in no table (an application of
another kind, a path nobody serves) has no template; its rules count it by the pattern they matched, so it is never exempt.

Needs no framework: it looks at attributes that Starlette's and FastAPI's routes have (``path_regex``, ``path_format``,
``methods``, ``routes``), and leaves out what has none of them. A route whose class matches by something else than host, path and method is taken
by these all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sluicegate.bounds import ROUTE_MEMO_CHARS_MAX, ROUTE_MEMO_MAX

__all__ = ["RouteTables"]


class _Entry(NamedTuple):
    regex: re.Pattern[str]
    template: str
    methods: frozenset[str] | None
    """None: any."""
    websocket: bool | None
    """None: a mount, for either kind of request."""
    inner: tuple[_Entry, ...] | None
    """Of a mount, or of a host: what is inside."""
    by_host: bool = False
    """Whether ``regex`` is about the host, and the path is left to what is inside."""


class _Table(NamedTuple):
    app: object
    length: int
    """Routes the application had when the table was made."""
    entries: tuple[_Entry, ...]
    by_host: bool
    """Whether some entry looks at the host."""


class RouteTables:
    """Tables of the applications met, and a bounded memo of requests. Used by any thread."""

    __slots__ = ("_memo", "_tables")

    def __init__(self) -> None:
        self._tables: dict[int, _Table] = {}
        self._memo: dict[tuple[int, str, str, str], str | None] = {}

    def template(self, app: object, scope: Mapping[str, Any], root_path: str) -> str | None:
        """The template of a request to ``app`` such as ``/users/{id}``; None where there is none.

        ``root_path``: where ``app`` begins in the scope's path, which mounts inside it change in the scope itself.
        """
        routes = getattr(app, "routes", None)
        if not isinstance(routes, Sequence):
            return None
        websocket = scope["type"] == "websocket"
        method = "" if websocket else scope["method"]
        path = _below(root_path, scope["path"])
        table = self._tables.get(id(app))
        if table is None or table.app is not app or table.length != len(routes):
            if len(self._tables) >= ROUTE_MEMO_MAX:
                self._tables.clear()
            entries = tuple(_entries(routes))
            table = self._tables[id(app)] = _Table(app, len(routes), entries, _looks_at_hosts(entries))
            self._memo.clear()
        host = _host_of(scope) if table.by_host else ""
        memo_key = (id(app), method, host, path)
        try:
            return self._memo[memo_key]
        except KeyError:
            pass
        found = _find(table.entries, path, method, host, websocket=websocket)
        if len(path) + len(method) + len(host) <= ROUTE_MEMO_CHARS_MAX:
            if len(self._memo) >= ROUTE_MEMO_MAX:
                self._memo.clear()
            self._memo[memo_key] = found
        return found


def _below(root: str, path: str) -> str:
    """The path below the application's root, as the router sees it."""
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in {"", "/"}:
        return path[len(root) :]
    return path


def _entries(routes: Iterable[Any]) -> Iterator[_Entry]:
    for route in routes:
        contexts = getattr(route, "effective_route_contexts", None)
        if contexts is not None:
            # A router included in a FastAPI application: its routes, with the prefix they are served under.
            for context in contexts():
                yield from _entries([getattr(context, "starlette_route", None) or context])
        elif isinstance(getattr(route, "host_regex", None), re.Pattern):
            inner = tuple(_entries(getattr(route, "routes", None) or ()))
            yield _Entry(route.host_regex, route.host_format, None, None, inner, by_host=True)
        elif isinstance(getattr(route, "path_regex", None), re.Pattern):
            yield _entry(route)


def _entry(route: Any) -> _Entry:
    inner = getattr(route, "routes", None)
    if inner is not None:
        prefix = route.path_format.removesuffix("/{path}")
        return _Entry(route.path_regex, prefix, None, None, tuple(_entries(inner)))
    if not hasattr(route, "methods"):
        return _Entry(route.path_regex, route.path_format, None, websocket=True, inner=None)
    methods = frozenset(route.methods) if route.methods else None
    return _Entry(route.path_regex, route.path_format, methods, websocket=False, inner=None)


def _looks_at_hosts(entries: Sequence[_Entry]) -> bool:
    return any(entry.by_host or _looks_at_hosts(entry.inner or ()) for entry in entries)


def _host_of(scope: Mapping[str, Any]) -> str:
    """The host as Starlette's router compares it: of the first such header, lower case, without the port."""
    for name, value in scope["headers"]:
        if name == b"host":
            text: str = value.decode("latin-1")
            return text.split(":", maxsplit=1)[0].lower()
    return ""


def _find(entries: Sequence[_Entry], path: str, method: str, host: str, *, websocket: bool) -> str | None:
    partial: str | None = None
    for entry in entries:
        if entry.websocket is not None and entry.websocket is not websocket:
            continue
        matched = entry.regex.match(host if entry.by_host else path)
        if matched is None:
            continue
        if entry.inner is not None:
            below = path if entry.by_host else "/" + matched["path"]
            inside = _find(entry.inner, below, method, host, websocket=websocket)
            return f"{entry.template}{inside or '/**'}"
        if entry.methods is None or method in entry.methods:
            return entry.template
        if partial is None:
            partial = entry.template
    return partial
