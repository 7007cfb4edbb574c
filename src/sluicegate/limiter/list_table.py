"""The entries of one list, in a form in which a request is looked up: one table per kind, and per length of a network's prefix.

An address is an integer without the low bits its network ignores, so a lookup costs one shift and one access per length that
occurs. Entries of one feed share one record of expiry and source. Readers need no lock: what they look at is a table whose
accesses are whole, or something that is replaced whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from re import fullmatch
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from sluicegate.bounds import LIST_DUE_SPARE, LIST_VALUE_CHARS_MAX, SUBJECT_CHARS_MAX
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.due import Due
from sluicegate.limiter.segmented import SEGMENTS, Numbered, Segmented
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListKey, ListKind
from sluicegate.rules.identity.addresses import Block, read_block
from sluicegate.stores.keys import escape

__all__ = ["ListTable", "Match", "Place", "Record", "place_of"]

K = TypeVar("K")

Record: TypeAlias = tuple[int | None, str]
"""(expires_us, source) of an entry; None: never."""

_LISTS: Final = ("allow", "block")
_NAMED: Final[tuple[ListKind, ...]] = ("api_key", "user", "tenant")
_DIGEST: Final = r"#[0-9a-f]{64}"
_ESCAPED: Final = 12
"""Characters that one character takes at most when it is escaped."""


class Place(NamedTuple):
    """An entry's place: which list, which kind, and the block or the name."""

    list: str
    kind: ListKind
    at: Block | str


class Match(NamedTuple):
    """An entry that a request is on."""

    kind: ListKind
    at: Block | str
    record: Record


def place_of(key: ListKey) -> Place:
    """Where an entry with this key stands; raises InvalidRequest naming what is wrong with it."""
    # Nobody has checked the types of what a caller made himself.
    name, kind, value = cast("tuple[object, object, object]", key)
    if not (isinstance(name, str) and name in _LISTS):
        raise InvalidRequest("list", f"want allow or block, got {name!r:.64}")
    if not isinstance(value, str) or not 0 < len(value) <= LIST_VALUE_CHARS_MAX:
        raise InvalidRequest("value", f"want 1 to {LIST_VALUE_CHARS_MAX} characters, got {value!r:.64}")
    if key[1] == "ip":
        try:
            return Place(name, "ip", read_block(value))
        except ValueError as error:
            raise InvalidRequest("value", str(error)) from None
    if kind not in _NAMED:
        raise InvalidRequest("kind", f"want ip, {', '.join(_NAMED)}, got {kind!r:.64}")
    return Place(name, key[1], value)


class _Group(Generic[K]):
    """Entries that are looked up in one table."""

    __slots__ = ("due", "entries")

    def __init__(self, entries: Segmented[K, Record]) -> None:
        self.entries = entries
        self.due: Due[K] = Due()

    def put(self, key: K, record: Record) -> None:
        self.entries[key] = record
        if record[0] is None:
            return
        self.due.add(record[0], key)
        if self.due.notes > 2 * len(self.entries) + LIST_DUE_SPARE:
            self.due = Due()
            for each, (expires_us, _) in self.entries.items():
                if expires_us is not None:
                    self.due.add(expires_us, each)

    def prune(self, now_us: int, at_most: int | None) -> None:
        entries = self.entries
        for key in self.due.take(now_us, at_most):
            expires_us, _ = entries.get(key) or (None, "")
            if expires_us is not None and expires_us <= now_us:
                del entries[key]


class ListTable:
    """One list. Its owner holds a lock where it changes anything; looking up needs none."""

    __slots__ = ("_blocks", "_digests", "_names", "_v4", "_v6")

    def __init__(self) -> None:
        self._blocks: dict[tuple[bool, int], _Group[int]] = {}
        self._names: dict[ListKind, _Group[str]] = {}
        self._v4: tuple[tuple[int, Segmented[int, Record]], ...] = ()
        self._v6: tuple[tuple[int, Segmented[int, Record]], ...] = ()
        self._digests = False

    def __len__(self) -> int:
        return sum(self.sizes().values())

    def sizes(self) -> dict[ListKind, int]:
        """Entries by kind; those that have ended and are not swept yet included."""
        sizes: dict[ListKind, int] = {"ip": sum(len(group.entries) for group in self._blocks.values())}
        for kind in _NAMED:
            group = self._names.get(kind)
            sizes[kind] = 0 if group is None else len(group.entries)
        return sizes

    # ------------------------------------------------------------------ changing

    def put(self, at: Block | str, kind: ListKind, record: Record) -> None:
        """Add an entry, or replace the one that stands there."""
        if isinstance(at, Block):
            group = self._blocks.get((at.is_v6, at.shift))
            if group is None:
                group = _Group(Numbered())
                # Others read sizes meanwhile, so a new dict takes the place of the old one, here and below.
                self._blocks = {**self._blocks, (at.is_v6, at.shift): group}
            fresh = not group.entries
            group.put(at.prefix, record)
            if fresh:
                self._arrange()
            return
        self._digests = self._digests or fullmatch(_DIGEST, at) is not None
        named = self._names.get(kind)
        if named is None:
            named = _Group(Segmented())
            self._names = {**self._names, kind: named}
        named.put(at, record)

    def remove(self, at: Block | str, kind: ListKind) -> bool:
        """Take an entry off; whether it was there."""
        if isinstance(at, Block):
            group = self._blocks.get((at.is_v6, at.shift))
            if group is None or group.entries.pop(at.prefix) is None:
                return False
            if not group.entries:
                self._arrange()
            return True
        named = self._names.get(kind)
        return named is not None and named.entries.pop(at) is not None

    def get(self, at: Block | str, kind: ListKind) -> Record | None:
        """The entry that stands exactly there, whether or not it has ended."""
        if isinstance(at, Block):
            group = self._blocks.get((at.is_v6, at.shift))
            return None if group is None else group.entries.get(at.prefix)
        named = self._names.get(kind)
        return None if named is None else named.entries.get(at)

    def prune(self, now_us: int, at_most: int | None = None) -> None:
        """Forget what ended in the minutes that are over, ``at_most`` entries of each kind and length (None: all)."""
        for group in self._blocks.values():
            group.prune(now_us, at_most)
        for named in self._names.values():
            named.prune(now_us, at_most)
        self._arrange()

    def _arrange(self) -> None:
        """Show readers the lengths of prefixes that have entries."""
        filled = [(key, group) for key, group in sorted(self._blocks.items()) if group.entries]
        self._blocks = dict(filled)
        self._v4 = tuple((shift, group.entries) for (is_v6, shift), group in filled if not is_v6)
        self._v6 = tuple((shift, group.entries) for (is_v6, shift), group in filled if is_v6)

    # ------------------------------------------------------------------ looking up

    def may_match(self, known: tuple[bool, int] | None, facts: Facts) -> bool:
        """Whether ``matches`` would find anything. On the path of every request, so it says no more than that.

        ``known``: the request's address as ``AddressNumbers`` gives it.
        """
        if known is not None:
            is_v6, number = known
            for shift, entries in self._v6 if is_v6 else self._v4:
                key = number >> shift
                if key in entries.parts[key % SEGMENTS]:
                    return True
        for kind, group in self._names.items():
            value = _VALUES[kind](facts)
            if value and (value in group.entries or (self._digests and len(value) * _ESCAPED > SUBJECT_CHARS_MAX)):
                return True
        return False

    def matches(self, known: tuple[bool, int] | None, facts: Facts) -> Iterator[Match]:
        """The entries that a request is on, whether or not they have ended."""
        if known is not None:
            is_v6, number = known
            for shift, entries in self._v6 if is_v6 else self._v4:
                record = entries.get(number >> shift)
                if record is not None:
                    yield Match("ip", Block(is_v6, shift, number >> shift), record)
        for kind, group in self._names.items():
            value = _VALUES[kind](facts)
            if not value:
                continue
            record = group.entries.get(value)
            if record is None and self._digests:
                # The key of a counter holds the digest of a long identity, and so does an entry that was made from a key.
                value = escape(value)
                record = group.entries.get(value) if value.startswith("#") else None
            if record is not None:
                yield Match(kind, value, record)


_VALUES: Final[dict[ListKind, Callable[[Facts], str | None]]] = {kind: attrgetter(kind) for kind in _NAMED}
