"""Path patterns of all rules in one tree, so that a path is compared with none of them one by one.

A node stands for the segments before it. Literals are looked up in a dict; ``*`` has one child; wildcards inside a segment
are tried in order; ``**`` has a child that stays active while segments pass. The active nodes after i segments are
those whose patterns match the first i, so a path of n segments costs at most n times the nodes that can be active, whatever
the patterns: nothing is tried twice. Because a pattern holds at most one ``**`` no node can become active twice in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluicegate.rules.paths import Glob, PathPattern, Wild

__all__ = ["Entries", "Entry", "PathTrie"]

Entry = tuple[int, int]
"""(rule, pattern): the index of a rule in evaluation order and of a pattern in its list."""


class Entries:
    """Entries that end at one place, apart by host: most sets with many rules of one path tell them apart so."""

    __slots__ = ("_any_host", "_by_host")

    def __init__(self) -> None:
        self._any_host: list[Entry] = []
        self._by_host: dict[str, list[Entry]] = {}

    def add(self, entry: Entry, hosts: Iterable[str]) -> None:
        """``hosts``: the exact hosts the rule is for; empty where it must be looked at for every host."""
        named = tuple(hosts)
        if not named:
            self._any_host.append(entry)
        for host in named:
            self._by_host.setdefault(host, []).append(entry)

    def collect(self, host: str | None, found: dict[int, int]) -> None:
        """Add the entries that may apply to ``host``; of a rule's patterns the first that matched stays."""
        for rule, pattern in self._any_host:
            if pattern < found.get(rule, pattern + 1):
                found[rule] = pattern
        if host is not None and self._by_host:
            for rule, pattern in self._by_host.get(host, ()):
                if pattern < found.get(rule, pattern + 1):
                    found[rule] = pattern


class _Node:
    __slots__ = ("ends", "globs", "literals", "one", "rest", "rest_ends")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.one: _Node | None = None
        self.globs: list[tuple[Glob, _Node]] = []
        self.rest: _Node | None = None
        """Where ``**`` leads when something follows it; active from here on."""
        self.ends: Entries | None = None
        self.rest_ends: Entries | None = None
        """Patterns whose last segment is ``**`` after this node: they match as soon as the node is active."""


class PathTrie:
    """Grown by ``add``, then only read; reading is safe from any thread."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, pattern: PathPattern, entry: Entry, hosts: Iterable[str] = ()) -> None:
        """Enter one pattern of a rule."""
        node = self._root
        last = len(pattern.segments) - 1
        for index, segment in enumerate(pattern.segments):
            if segment is Wild.REST and index == last:
                node.rest_ends = node.rest_ends or Entries()
                node.rest_ends.add(entry, hosts)
                return
            node = _child(node, segment)
        node.ends = node.ends or Entries()
        node.ends.add(entry, hosts)

    def collect(self, segments: Sequence[str], host: str | None, found: dict[int, int]) -> None:
        """Add every rule one of whose patterns matches these segments to ``found`` (rule -> pattern)."""
        active = [self._root]
        for segment in segments:
            following: list[_Node] = []
            for node in active:
                _step(node, segment, host, found, following)
            if not following:
                return
            active = following
        for node in active:
            _finish(node, host, found)


def _child(node: _Node, segment: str | Wild | Glob) -> _Node:
    if isinstance(segment, str):
        return node.literals.setdefault(segment, _Node())
    if segment is Wild.ONE:
        node.one = node.one or _Node()
        return node.one
    if segment is Wild.REST:
        node.rest = node.rest or _Rest()
        return node.rest
    assert isinstance(segment, Glob)
    for glob, child in node.globs:
        if glob == segment:
            return child
    child = _Node()
    node.globs.append((segment, child))
    return child


class _Rest(_Node):
    """The node behind a ``**`` in the middle: it stays active."""

    __slots__ = ()


def _step(node: _Node, segment: str, host: str | None, found: dict[int, int], following: list[_Node]) -> None:
    """Advance one active node by one segment."""
    if node.rest_ends is not None:
        node.rest_ends.collect(host, found)
    if type(node) is _Rest:
        following.append(node)
    _advance(node, segment, following)
    if node.rest is not None:
        # ``**`` may stand for nothing: what follows it is compared with this very segment too.
        following.append(node.rest)
        _advance(node.rest, segment, following)


def _advance(node: _Node, segment: str, following: list[_Node]) -> None:
    child = node.literals.get(segment)
    if child is not None:
        following.append(child)
    if node.one is not None:
        following.append(node.one)
    for glob, globbed in node.globs:
        if glob.matches(segment):
            following.append(globbed)


def _finish(node: _Node, host: str | None, found: dict[int, int]) -> None:
    """The path ends here."""
    for ends in (node.ends, node.rest_ends):
        if ends is not None:
            ends.collect(host, found)
