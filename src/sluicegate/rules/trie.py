"""Path patterns of all rules in one tree, so that a path is compared with none of them one by one.

A node stands for the segments before it. Literals are looked up in a dict; ``*`` has one child; wildcards inside a segment
are found by how the segment begins or ends; ``**`` has a child that stays active while segments pass. The active nodes
after i segments are those whose patterns match the first i, so a path of n segments costs at most n times the nodes that can
be active, whatever the patterns: nothing is tried twice. Because a pattern holds at most one ``**``, no node can become
active twice in one step.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluicegate.rules.labels import Label
from sluicegate.rules.paths import Glob, PathPattern, Wild

__all__ = ["Entries", "Entry", "PathTrie"]

Entry = tuple[int, int]
"""(rule, pattern): the index of a rule in evaluation order and of a pattern in its list."""


class Entries:
    """Entries that end at one place, filed by label (see ``labels``) where they have one."""

    __slots__ = ("_by_label", "_unlabelled")

    def __init__(self) -> None:
        self._unlabelled: list[Entry] = []
        self._by_label: dict[Label, list[Entry]] = {}

    def add(self, entry: Entry, labels: Sequence[Label]) -> None:
        """``labels``: those the rule is filed under; empty where every request must look at it."""
        if not labels:
            self._unlabelled.append(entry)
        for label in labels:
            self._by_label.setdefault(label, []).append(entry)

    def collect(self, labels: Sequence[Label], found: dict[int, int]) -> None:
        """Add the entries that may apply to a request with ``labels``; of a rule's patterns the first stays."""
        for rule, pattern in self._unlabelled:
            if found.setdefault(rule, pattern) > pattern:
                found[rule] = pattern
        if self._by_label:
            for label in labels:
                for rule, pattern in self._by_label.get(label, ()):
                    if found.setdefault(rule, pattern) > pattern:
                        found[rule] = pattern


class _Globs:
    """Children behind wildcards inside a segment, filed by the literal they begin with, else by the one they end with.

    A segment looks up its own beginning and end once for each length that some pattern has; only patterns that
    begin and end with a wildcard are tried one by one.
    """

    __slots__ = ("_by_end", "_by_start", "_others")

    def __init__(self) -> None:
        self._by_start: dict[int, dict[str, list[tuple[Glob, _Node]]]] = {}
        self._by_end: dict[int, dict[str, list[tuple[Glob, _Node]]]] = {}
        self._others: list[tuple[Glob, _Node]] = []

    def child(self, glob: Glob) -> _Node:
        """The child for a pattern, made where it is missing."""
        if glob.gaps[0] is None:
            start = glob.literals[0]
            filed = self._by_start.setdefault(len(start), {}).setdefault(start, [])
        elif glob.literals[-1]:
            end = glob.literals[-1]
            filed = self._by_end.setdefault(len(end), {}).setdefault(end, [])
        else:
            filed = self._others
        for known, child in filed:
            if known == glob:
                return child
        filed.append((glob, _Node()))
        return filed[-1][1]

    def find(self, segment: str) -> list[_Node]:
        """The children whose pattern the segment matches."""
        tried = self._others.copy()
        for length, starts in self._by_start.items():
            tried += starts.get(segment[:length], ())
        for length, ends in self._by_end.items():
            tried += ends.get(segment[-length:], ())
        return [child for glob, child in tried if glob.matches(segment)]


class _Node:
    """``reached`` is what becomes active with this node: itself, and where ``**`` leads, which may stand for nothing."""

    __slots__ = ("ends", "globs", "literals", "one", "reached", "rest", "rest_ends", "stays")

    def __init__(self, *, stays: bool = False) -> None:
        self.literals: dict[str, _Node] = {}
        self.one: _Node | None = None
        self.globs: _Globs | None = None
        self.stays = stays
        """True behind a ``**``: the node remains active whatever segments pass."""
        self.rest: _Node | None = None
        self.reached: tuple[_Node, ...] = (self,)
        self.ends: Entries | None = None
        self.rest_ends: Entries | None = None
        """Patterns that end with ``**`` after this node: they match as soon as it is active."""


class PathTrie:
    """Grown by ``add``, then only read; reading is safe from any thread."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, pattern: PathPattern, entry: Entry, labels: Sequence[Label] = ()) -> None:
        """Enter one pattern of a rule."""
        node = self._root
        last = len(pattern.segments) - 1
        for index, segment in enumerate(pattern.segments):
            if segment is Wild.REST and index == last:
                node.rest_ends = node.rest_ends or Entries()
                node.rest_ends.add(entry, labels)
                return
            node = _child(node, segment)
        node.ends = node.ends or Entries()
        node.ends.add(entry, labels)

    def collect(self, segments: Sequence[str], labels: Sequence[Label], found: dict[int, int]) -> None:
        """Add every rule one of whose patterns matches these segments to ``found`` (rule -> pattern)."""
        active: Sequence[_Node] = self._root.reached
        for segment in segments:
            following: list[_Node] = []
            for node in active:
                if node.rest_ends is not None:
                    node.rest_ends.collect(labels, found)
                child = node.literals.get(segment)
                if child is not None:
                    following += child.reached
                if node.one is not None:
                    following += node.one.reached
                if node.globs is not None:
                    for globbed in node.globs.find(segment):
                        following += globbed.reached
                if node.stays:
                    following.append(node)
            if not following:
                return
            active = following
        for node in active:
            for ends in (node.ends, node.rest_ends):
                if ends is not None:
                    ends.collect(labels, found)


def _child(node: _Node, segment: str | Wild | Glob) -> _Node:
    """The child for a segment, made where it is missing."""
    if isinstance(segment, str):
        return node.literals.setdefault(segment, _Node())
    if segment is Wild.ONE:
        node.one = node.one or _Node()
        return node.one
    if segment is Wild.REST:
        node.rest = node.rest or _Node(stays=True)
        node.reached = (node, node.rest)
        return node.rest
    assert isinstance(segment, Glob)
    node.globs = node.globs or _Globs()
    return node.globs.child(segment)
