"""What two ``match`` blocks have in common, as far as that can be told without looking at requests.

Both questions are answered on the safe side for a check: ``may_meet`` says yes, and ``covers`` no, where it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TypeAlias

from sluicegate.bounds import RULES_MAX
from sluicegate.rules.model import Entry, Match
from sluicegate.rules.paths import Glob, PathPattern, Segment, Wild, parse_pattern

__all__ = ["covers", "may_meet"]

_LISTS = ("methods", "tier", "tenant", "user", "domain")

_Covers: TypeAlias = Callable[[str, str], bool]


def may_meet(one: Match, other: Match) -> bool:
    """False only where no request can match both."""
    for name in _LISTS:
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine and theirs and not set(mine) & set(theirs):
            return False
    if _both(one.host, other.host) and not any(_hosts_meet(a, b) for a in one.host for b in other.host):
        return False
    if _both(one.path, other.path) and not any(_paths_meet(a, b) for a in one.path for b in other.path):
        return False
    if _both(one.ip, other.ip) and not any(_networks_meet(a, b) for a in one.ip for b in other.ip):
        return False
    if None not in (one.authenticated, other.authenticated) and one.authenticated is not other.authenticated:
        return False
    if _entries_differ(one.headers, other.headers) or _entries_differ(one.descriptors, other.descriptors):
        return False
    if _both(one.entries, other.entries) and not _entries_meet(one.entries, other.entries):
        return False
    taken_out = (one.negate is not None and covers(one.negate, other)) or (
        other.negate is not None and covers(other.negate, one)
    )
    return not taken_out


def covers(wide: Match, narrow: Match) -> bool:
    """True only where every request with a path that matches ``narrow`` matches ``wide``."""
    for name in _LISTS:
        mine, theirs = getattr(wide, name), getattr(narrow, name)
        if mine and not (theirs and set(theirs) <= set(mine)):
            return False
    if wide.host and not _each_covered(wide.host, narrow.host, _host_covers):
        return False
    if wide.path and "/**" not in wide.path and not _each_covered(wide.path, narrow.path, _path_covers):
        return False
    if wide.ip and not _each_covered(wide.ip, narrow.ip, _network_covers):
        return False
    if wide.authenticated is not None and wide.authenticated is not narrow.authenticated:
        return False
    if not _entries_cover(wide.headers, narrow.headers) or not _entries_cover(wide.descriptors, narrow.descriptors):
        return False
    if wide.entries and wide.entries != narrow.entries:
        return False
    return wide.negate is None or wide.negate == narrow.negate or not may_meet(wide.negate, narrow)


def _entries_meet(one: Sequence[Entry], other: Sequence[Entry]) -> bool:
    """False only where no descriptor is both."""
    if [entry.key for entry in one] != [entry.key for entry in other]:
        return False
    return not any(
        a.value is not None and b.value is not None and "*" not in a.value + b.value and a.value != b.value
        for a, b in zip(one, other, strict=True)
    )


def _both(one: Sequence[object], other: Sequence[object]) -> bool:
    return bool(one) and bool(other)


def _each_covered(wide: Sequence[str], narrow: Sequence[str], covered: _Covers) -> bool:
    return bool(narrow) and all(any(covered(a, b) for a in wide) for b in narrow)


def _entries_differ(one: Mapping[str, str | None], other: Mapping[str, str | None]) -> bool:
    """True where both ask the same name for different values."""
    return any(
        value is not None and other.get(name) is not None and other[name] != value for name, value in one.items()
    )


def _entries_cover(wide: Mapping[str, str | None], narrow: Mapping[str, str | None]) -> bool:
    return all(name in narrow and (value is None or narrow[name] == value) for name, value in wide.items())


def _host_covers(wide: str, narrow: str) -> bool:
    if wide in ("*", narrow):
        return True
    return wide.startswith("*.") and narrow.endswith(wide[1:])


def _hosts_meet(one: str, other: str) -> bool:
    return _host_covers(one, other) or _host_covers(other, one)


def _network_covers(wide: str, narrow: str) -> bool:
    a, b = ip_network(wide), ip_network(narrow)
    if isinstance(a, IPv4Network) and isinstance(b, IPv4Network):
        return b.subnet_of(a)
    return isinstance(a, IPv6Network) and isinstance(b, IPv6Network) and b.subnet_of(a)


def _networks_meet(one: str, other: str) -> bool:
    return _network_covers(one, other) or _network_covers(other, one)


@lru_cache(RULES_MAX)
def _pattern(text: str) -> PathPattern:
    return parse_pattern(text)


def _path_covers(wide_text: str, narrow_text: str) -> bool:
    wide, narrow = _pattern(wide_text).segments, _pattern(narrow_text).segments
    if Wild.REST not in wide:
        return len(wide) == len(narrow) and all(map(_segment_covers, wide, narrow))
    at = wide.index(Wild.REST)
    head, tail = wide[:at], wide[at + 1 :]
    fixed = len(narrow) - (Wild.REST in narrow)
    if fixed < len(head) + len(tail):
        return False
    return all(map(_segment_covers, head, narrow)) and all(
        map(_segment_covers, tail, narrow[len(narrow) - len(tail) :])
    )


def _segment_covers(wide: Segment, narrow: Segment) -> bool:
    if narrow is Wild.REST:
        return False
    if wide is Wild.ONE or wide == narrow:
        return True
    return isinstance(wide, Glob) and isinstance(narrow, str) and wide.matches(narrow)


def _paths_meet(one_text: str, other_text: str) -> bool:
    """Whether some path matches both: row by row over the segments, like an edit distance."""
    one, other = _pattern(one_text).segments, _pattern(other_text).segments
    # reached[j]: the segments of `one` before the current one can be used up together with the first j of `other`.
    reached = [True]
    for j, segment in enumerate(other):
        reached.append(reached[j] and segment is Wild.REST)
    for mine in one:
        row = [reached[0] and mine is Wild.REST]
        for j, theirs in enumerate(other):
            if mine is Wild.REST or theirs is Wild.REST:
                row.append(reached[j + 1] or row[j] or reached[j])
            else:
                row.append(reached[j] and _segments_meet(mine, theirs))
        reached = row
    return reached[-1]


def _segments_meet(one: Segment, other: Segment) -> bool:
    if Wild.ONE in (one, other):
        return True
    if isinstance(one, Glob) and isinstance(other, Glob):
        return _ends_meet(one, other)
    return _segment_covers(one, other) or _segment_covers(other, one)


def _ends_meet(one: Glob, other: Glob) -> bool:
    """Two globs can only meet if the shorter fixed beginning begins the longer, and so for their ends."""
    heads = [glob.literals[0] if glob.gaps[0] is None else "" for glob in (one, other)]
    tails = [glob.literals[-1] for glob in (one, other)]
    return (heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])) and (
        tails[0].endswith(tails[1]) or tails[1].endswith(tails[0])
    )
