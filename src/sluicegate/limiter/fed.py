"""Tables in a process's memory that a rules service feeds with what has changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from sluicegate.bounds import LIST_RECORDS_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import ConfigurationError
from sluicegate.stores.locks import Locked

__all__ = ["Changes", "FedTable", "Shared"]

S = TypeVar("S")
E = TypeVar("E")
K = TypeVar("K")
R = TypeVar("R")
E_co = TypeVar("E_co", covariant=True)
K_co = TypeVar("K_co", covariant=True)

_PRUNE_EVERY_US: Final = 60 * US_PER_S


class Changes(Protocol[E_co, K_co]):
    """``ListChanges`` and ``SubjectChanges``."""

    @property
    def incarnation(self) -> str: ...
    @property
    def since(self) -> int: ...
    @property
    def revision(self) -> int: ...
    @property
    def full(self) -> bool: ...
    @property
    def put(self) -> Iterable[E_co]: ...
    @property
    def remove(self) -> Iterable[K_co]: ...
    @property
    def more(self) -> bool: ...


class Shared(dict[R, R]):
    """One object for all values that are equal; forgotten when there are ``LIST_RECORDS_MAX``, and equal ones are two then."""

    __slots__ = ()

    def __missing__(self, value: R) -> R:
        if len(self) >= LIST_RECORDS_MAX:
            self.clear()
        self[value] = value
        return value


class FedTable(Locked, ABC, Generic[S, E, K]):
    """A state of entries ``E`` with keys ``K``. Safe from any thread.

    ``revision`` and ``incarnation``: of the changes that were applied last, 0 and "" before the first. ``changed`` is called after every
    change.
    """

    __slots__ = (
        "_asked",
        "_changed",
        "_clock",
        "_feed",
        "_prune_at_us",
        "_staged",
        "_state",
        "_what",
        "incarnation",
        "revision",
    )

    def __init__(self, what: str, clock: Clock, changed: Callable[[], None] | None) -> None:
        super().__init__()
        self._what = what
        self._clock = clock
        self._changed = changed
        self._state = self._fresh()
        # Whoever feeds the table takes this lock for long, and the table's own only to change what is in service.
        self._feed = Locked()
        self._staged: S | None = None
        # Incarnation and revision of the last page, which the next one follows.
        self._asked: tuple[str, int] = ("", 0)
        self._prune_at_us = 0
        self.incarnation = ""
        self.revision = 0

    def put(self, entry: E) -> None:
        """Add an entry, or replace the one with its key. Raises InvalidRequest naming what is wrong with it."""
        self._change([entry], ())

    def replace(self, entries: Iterable[E]) -> None:
        """Put these entries in the place of all there are, at one moment.

        Raises InvalidRequest for an entry that is none, and ConfigurationError for too many; then nothing has changed.
        """
        fresh = self._fresh()
        self._fill(fresh, entries, ())
        self._serve(fresh)

    def apply(self, changes: Changes[E, K]) -> bool:
        """Take over what a rules service says has changed; whether anything was taken over.

        Pages of a whole state (``full``, then ``more``) are put in service together when the last has come. Changes that are here
        already are ignored. Raises ConfigurationError for changes since another state than the one that is here, and for too many
        entries, and InvalidRequest for an entry that is none; then nothing of them is here, and the whole state is to be asked for.
        """
        with self._feed._lock:
            if changes.full:
                self._staged = self._fresh()
                self._fill(self._staged, changes.put, ())
            elif self._staged is not None:
                self._check_next(changes)
                self._fill(self._staged, changes.put, changes.remove)
            else:
                here = changes.incarnation == self.incarnation and changes.revision <= self.revision
                if here and not changes.more:
                    return False
                self._check_next(changes)
                self._change(changes.put, changes.remove)
            self._asked = (changes.incarnation, changes.revision)
            if changes.more:
                return True
            if self._staged is not None:
                self._serve(self._staged)
                self._staged = None
            self.incarnation, self.revision = self._asked
        return True

    def _check_next(self, changes: Changes[E, K]) -> None:
        """Changes must follow the page before or, where none is under way, what is here."""
        follows = (changes.incarnation, changes.since)
        if follows == self._asked or (self._staged is None and follows == (self.incarnation, self.revision)):
            return
        # What has come of a whole state is lost, and the pages that still follow must not be taken for changes of what is here.
        self._staged = None
        self._asked = (self.incarnation, self.revision)
        raise ConfigurationError(
            f"{self._what}: got changes since {changes.since} of {changes.incarnation!r}, "
            f"but here is {self.revision} of {self.incarnation!r}"
        )

    def _check_room(self, count: int, most: int) -> None:
        if count > most:
            raise ConfigurationError(f"{self._what}: at most {most} fit into the memory of a process")

    def _prune(self) -> None:
        """Forget what has ended, at most once a minute; it does not count any more in any case."""
        now_us = self._clock.now_us()
        if 0 < self._prune_at_us - now_us <= _PRUNE_EVERY_US:
            return
        self._prune_at_us = now_us + _PRUNE_EVERY_US
        self._forget_ended(now_us)

    def _note_change(self) -> None:
        if self._changed is not None:
            self._changed()

    # ------------------------------------------------------------------ of each table

    @abstractmethod
    def _fresh(self) -> S:
        """A state without entries."""

    @abstractmethod
    def _fill(self, state: S, put: Iterable[E], remove: Iterable[K]) -> None:
        """Change a state that is not in service yet."""

    @abstractmethod
    def _change(self, put: Iterable[E], remove: Iterable[K]) -> None:
        """Change the state in service; all entries are read before the first is changed."""

    @abstractmethod
    def _serve(self, state: S) -> None:
        """Put a whole state in service."""

    @abstractmethod
    def _forget_ended(self, now_us: int) -> None:
        """Forget what ended in the minutes that are over."""
