"""What a rules service told last, kept on disk for a start while the service is away.

``DATA/feed/NAME/``, readable by its owner only; NAME stands for the service's URL, so that a node that is sent to another service does not
begin with the rules of the one before.

    rules      the rules whole, replaced by each later one
    lists      the lists whole, and after that what has changed since, one record per answer of the service
    subjects   the same of the subjects

Every record has its SHA-256. A file is used as far as it is whole: one whose end is missing, as it is after a crash, is used up to there,
and one with anything else in it is refused. The checksum guards against damage, not against somebody who may write here; who can may as
well change the program.

Of several processes with one directory one writes: two would write over each other's changes. A lock of the kernel says which; it ends with the
process, and the next change of the rules is kept by another.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, Generic, TypeVar

import msgspec

from sluicegate.bounds import KEPT_RULES_BYTES_MAX, KEPT_TABLE_BYTES_MAX
from sluicegate.rules.feed import ListChanges, Snapshot, SubjectChanges

__all__ = ["Damaged", "Kept", "KeptTable"]

_MAGIC: Final = b"sluicegate feed 1\n"
_DIGEST_BYTES: Final = 32
_HEAD_BYTES: Final = 8 + _DIGEST_BYTES
_SPARE_BYTES: Final = 4_194_304
# Changes may take this much, and as much as what they change, before the whole is asked for anew.

C = TypeVar("C", bound=ListChanges | SubjectChanges)


class Damaged(Exception):
    """A file holds something else than what was written."""


class Kept:
    """The directory of one service. ``name`` stands for the service, and is its URL where that lasts. Not for use by two threads at once.

    ``writes``: False only reads it, for all but one of several workers, and as long as another process writes there.
    Reading raises Damaged, and OSError; writing raises OSError.
    """

    def __init__(self, data: Path, name: str, *, writes: bool = True) -> None:
        self.directory = data / "feed" / sha256(name.encode()).hexdigest()[:16]
        self.writes = writes
        self.lists = KeptTable(self.directory / "lists", ListChanges, writes=writes)
        self.subjects = KeptTable(self.directory / "subjects", SubjectChanges, writes=writes)
        self._rules = self.directory / "rules"
        self._may_write = writes
        self._lock: int | None = None

    def open(self) -> None:
        """Make the directory, and take its lock where no other process has it. Raises OSError where there can be no directory."""
        for directory in (self.directory.parent, self.directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._may_write:
            self._set_writes(self._take_lock())
            if self.writes:
                self._sweep()

    def read_rules(self) -> Snapshot | None:
        """The rules that were kept; None where there are none."""
        try:
            with self._rules.open("rb") as file:
                records = list(_records(file, self._rules, KEPT_RULES_BYTES_MAX))
        except FileNotFoundError:
            return None
        if len(records) != 1:
            raise Damaged(f"{self._rules} holds {len(records)} whole records where one was written")
        return _decoded(records[0], Snapshot, self._rules)

    def write_rules(self, snapshot: Snapshot) -> None:
        """Keep these in the place of those before."""
        if self._may_write and not self.writes and self._take_lock():
            # Who wrote here has ended. What it did not keep is not known here, so the tables are to be asked for whole.
            self._set_writes(True)
            self.lists.begin_anew()
            self.subjects.begin_anew()
        content = msgspec.msgpack.encode(snapshot)
        if not self.writes or len(content) > KEPT_RULES_BYTES_MAX - _HEAD_BYTES - len(_MAGIC):
            return
        beside = _beside(self._rules)
        try:
            with _created(beside) as file:
                file.write(_MAGIC + _record(content))
                _sync(file)
            beside.replace(self._rules)
        finally:
            beside.unlink(missing_ok=True)

    def close(self) -> None:
        """Close what is open, and let go of the lock."""
        self.lists.close()
        self.subjects.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> bool:
        """Whether this process is the one that writes. The lock's file stays: another process may hold it open already.

        True as well where there can be no lock: where that is because nothing can be written, the writing says so.
        """
        if self._lock is not None:
            return True
        try:
            lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            return not isinstance(error, BlockingIOError)
        self._lock = lock
        return True

    def _set_writes(self, writes: bool) -> None:
        self.writes = self.lists.writes = self.subjects.writes = writes

    def _sweep(self) -> None:
        """Remove what processes left half written that were killed; the one that may write here is this one."""
        for left in self.directory.iterdir():
            if left.suffix[1:].isdecimal():
                with contextlib.suppress(OSError):
                    left.unlink()


class KeptTable(Generic[C]):
    """The answers of a service about one table, since the last that was whole.

    ``is_long``: the whole is to be asked for, because what has changed since takes more room than it. ``writes``: whether anything is kept.
    """

    def __init__(self, path: Path, kind: type[C], *, writes: bool = True) -> None:
        self.path = path
        self._kind = kind
        self.writes = writes
        self._anew = False
        self._file: BinaryIO | None = None
        self._fresh: BinaryIO | None = None
        """A whole state that is being written and will take the file's place."""
        self._whole_bytes = 0
        self._bytes = 0
        self._read_bytes = 0
        """How far the file was read, and is whole."""

    @property
    def is_long(self) -> bool:
        """Whether the changes have outgrown what they change, or what they change is not here."""
        return self._anew or (self._file is not None and self._bytes > 2 * self._whole_bytes + _SPARE_BYTES)

    def read(self) -> Iterator[C]:
        """The answers in order; none where nothing was kept."""
        self._read_bytes = 0
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            self._read_bytes = len(_MAGIC)
            for content in _records(file, self.path, KEPT_TABLE_BYTES_MAX):
                yield _decoded(content, self._kind, self.path)
                self._read_bytes += _HEAD_BYTES + len(content)

    def go_on(self) -> None:
        """Write what comes next behind what was read: only where all of it was taken over."""
        end, self._read_bytes = self._read_bytes, 0
        if not self.writes or not end:
            return
        self.close()
        opened = self.path.open("r+b", buffering=0)
        opened.truncate(end)
        opened.seek(end)
        self._file, self._bytes, self._whole_bytes = opened, end, end

    def begin_anew(self) -> None:
        """Ask for the whole once, at the next change."""
        self._anew = True

    def add(self, changes: C) -> None:
        """Keep an answer that was taken over. After a failure nothing is kept until the next that is whole."""
        if not self.writes:
            return
        try:
            self._add(changes)
        except OSError:
            self.close()
            raise

    def _add(self, changes: C) -> None:
        if changes.full:
            self._anew = False
            self._drop_fresh()
            self._fresh = _created(_beside(self.path))
            self._fresh.write(_MAGIC)
        file = self._fresh or self._file
        if file is None:
            return
        record = _record(msgspec.msgpack.encode(changes))
        if file.tell() + len(record) > KEPT_TABLE_BYTES_MAX:
            raise OSError(f"{self.path} would have more than {KEPT_TABLE_BYTES_MAX} bytes")
        file.write(record)
        if changes.more:
            return
        _sync(file)
        if self._fresh is not None:
            _beside(self.path).replace(self.path)
            if self._file is not None:
                self._file.close()
            self._file, self._fresh = self._fresh, None
            self._whole_bytes = self._file.tell()
        self._bytes = file.tell()

    def close(self) -> None:
        """Let go of the files; what is half written is removed."""
        self._drop_fresh()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _drop_fresh(self) -> None:
        if self._fresh is not None:
            self._fresh.close()
            self._fresh = None
            with contextlib.suppress(OSError):
                _beside(self.path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}")


def _created(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "r+b")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _record(content: bytes) -> bytes:
    return len(content).to_bytes(8, "big") + sha256(content).digest() + content


def _records(file: BinaryIO, path: Path, bytes_max: int) -> Iterator[bytes]:
    """The records that are whole; raises Damaged where something else stands in their place."""
    size = os.fstat(file.fileno()).st_size
    if size > bytes_max:
        raise Damaged(f"{path} has {size} bytes; at most {bytes_max} are ever written")
    if file.read(len(_MAGIC)) != _MAGIC:
        raise Damaged(f"{path} does not begin as a file of ours")
    while len(head := file.read(_HEAD_BYTES)) == _HEAD_BYTES:
        length = int.from_bytes(head[:8], "big")
        if length > bytes_max:
            raise Damaged(f"{path} holds a record of {length} bytes")
        content = file.read(length)
        if len(content) < length:
            return
        if sha256(content).digest() != head[8:]:
            raise Damaged(f"{path} is not what was written: its checksum is another")
        yield content


T = TypeVar("T")


def _decoded(content: bytes, kind: type[T], path: Path) -> T:
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Damaged(f"{path} was written by another release: {error}") from None
