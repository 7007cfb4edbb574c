"""The route template of a request, found as Starlette's router finds the route, before it does.

The table is made from the routes of an application: those of mounted applications and included routers too, in the router's
order. The first route whose path and method fit wins, else the first whose path fits. What is in no table (an application of
another kind, a path nobody serves) has no template; its rules count it by the pattern they matched, so it is never exempt.

Needs no framework: it looks at attributes that Starlette's and FastAPI's routes have (``path_regex``, ``path_format``,
``methods``, ``routes``), and leaves out what has none of them. A route whose class matches by something else than path and method is taken
by these two all the same.
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
    """Of a mount: what is inside."""


class RouteTables:
    """Tables of the applications met, and a bounded memo of requests. Used by any thread."""

    __slots__ = ("_memo", "_tables")

    def __init__(self) -> None:
        self._tables: dict[int, tuple[object, int, tuple[_Entry, ...]]] = {}
        self._memo: dict[tuple[int, str, str], str | None] = {}

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
        known = self._tables.get(id(app))
        if known is None or known[0] is not app or known[1] != len(routes):
            if len(self._tables) >= ROUTE_MEMO_MAX:
                self._tables.clear()
            known = self._tables[id(app)] = (app, len(routes), tuple(_entries(routes)))
            self._memo.clear()
        memo_key = (id(app), method, path)
        try:
            return self._memo[memo_key]
        except KeyError:
            pass
        found = _find(known[2], path, method, websocket=websocket)
        if len(path) + len(method) <= ROUTE_MEMO_CHARS_MAX:
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
        elif hasattr(route, "host_regex"):
            # The routes of one host. Which host it is does not matter to the template.
            yield from _entries(getattr(route, "routes", None) or ())
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


def _find(entries: Sequence[_Entry], path: str, method: str, *, websocket: bool) -> str | None:
    partial: str | None = None
    for entry in entries:
        if entry.websocket is not None and entry.websocket is not websocket:
            continue
        matched = entry.regex.match(path)
        if matched is None:
            continue
        if entry.inner is not None:
            inside = _find(entry.inner, "/" + matched["path"], method, websocket=websocket)
            return f"{entry.template}{inside or '/**'}"
        if entry.methods is None or method in entry.methods:
            return entry.template
        if partial is None:
            partial = entry.template
    return partial
