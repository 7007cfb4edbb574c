"""What is kept on disk for a start without the rules service."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from sluicegate.app.feed import kept as kept_module
from sluicegate.app.feed.kept import Damaged, Kept
from sluicegate.app.feed.tables import Table
from sluicegate.clock import ManualClock
from sluicegate.limiter.lists import Lists
from sluicegate.rules.feed import (
    Candidate,
    ListChanges,
    ListEntry,
    Pause,
    Revisions,
    RulesDocument,
    Snapshot,
    SubjectChanges,
    SubjectEntry,
)

URL = "https://control.example:8090"
DOCUMENT = {"version": 1, "rules": [{"name": "api", "quota": "5/minute", "cost": 2}]}
SNAPSHOT = Snapshot(
    Revisions("a", 3, 2, 1),
    RulesDocument(3, "d", DOCUMENT),
    Candidate(1, "canary", RulesDocument(0, "e", DOCUMENT), "salt", 100, ("n1",), 0, 5),
    (Pause("api", 9, "why"), Pause(None, None)),
)


def whole(revision, *users, more=False, cursor="", full=True):
    entries = [ListEntry("block", "user", user) for user in users]
    return ListChanges("a", 0, 0 if more else revision, full, entries, [], more, cursor)


def since(since, revision, *users):
    return ListChanges("a", since, revision, False, [ListEntry("block", "user", user) for user in users], [])


@pytest.fixture
def kept(tmp_path):
    made = Kept(tmp_path / "data", URL)
    made.open()
    yield made
    made.close()


@pytest.fixture
def again(tmp_path):
    """The same directory as the next process sees it."""
    made = []

    def make(**how):
        made.append(Kept(tmp_path / "data", URL, **how))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def fill():
    """A table of lists that has taken over what is kept, and the table that fetches for it."""

    def make(kept):
        lists = Lists(ManualClock())
        table = Table(lists, None, kept.lists, ListChanges("", 0, 0, True, [], []))
        table.load()
        return lists, table

    return make


def test_rules_are_kept(kept, again):
    """Rules, rollout and pauses come back as they were; the later replace the earlier; nobody else may read them."""
    assert kept.read_rules() is None
    kept.write_rules(Snapshot(Revisions("a", 1), RulesDocument(1, "c", DOCUMENT)))
    kept.write_rules(SNAPSHOT)
    assert again().read_rules() == SNAPSHOT
    assert sorted(os.listdir(kept.directory)) == ["lock", "rules"]
    assert stat.S_IMODE((kept.directory / "rules").stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.directory.stat().st_mode) == 0o700


def test_another_service_has_its_own(kept, tmp_path):
    """What one service said is not what a node of another begins with."""
    kept.write_rules(SNAPSHOT)
    assert Kept(tmp_path / "data", "https://other.example").read_rules() is None


def test_one_worker_writes(kept, again, fill):
    """Workers that do not write read what the one that does has kept, and change nothing."""
    kept.write_rules(SNAPSHOT)
    kept.lists.add(whole(4, "x"))
    reader = again(writes=False)
    reader.write_rules(Snapshot(Revisions("b", 1), RulesDocument(1, "c", DOCUMENT)))
    reader.lists.add(whole(5))
    assert reader.read_rules() == SNAPSHOT
    assert fill(reader)[0].revision == 4


def test_two_processes_with_one_directory(kept, again, fill):
    """Of two that may write one does, and the other takes over when it has ended, beginning with the whole."""
    kept.write_rules(SNAPSHOT)
    kept.lists.add(whole(4, "x"))
    other = again()
    other.open()
    lists, _ = fill(other)
    assert lists.revision == 4
    newer = Snapshot(Revisions("a", 4), RulesDocument(4, "c", DOCUMENT))
    other.write_rules(newer)
    other.lists.add(since(4, 5, "y"))
    assert not other.writes
    assert other.read_rules() == SNAPSHOT
    assert [each.revision for each in other.lists.read()] == [4]
    kept.close()
    assert not other.lists.is_long
    other.write_rules(newer)
    assert other.read_rules() == newer
    assert other.lists.is_long
    other.lists.add(whole(6, "x", "y"))
    assert not other.lists.is_long
    assert [each.revision for each in other.lists.read()] == [6]


@pytest.mark.parametrize("what", ["open", "flock"])
def test_where_there_can_be_no_lock(kept, again, monkeypatch, what):
    """Where nothing can be written what was kept is read all the same; a file system without locks takes what is told."""
    kept.write_rules(SNAPSHOT)
    kept.close()

    def refuses(*_args, **_more):
        raise OSError(errno.EROFS if what == "open" else errno.ENOLCK, "it does not do that")

    other = again()
    monkeypatch.setattr(kept_module.os if what == "open" else kept_module.fcntl, what, refuses)
    other.open()
    monkeypatch.undo()
    assert other.read_rules() == SNAPSHOT
    newer = Snapshot(Revisions("a", 4), RulesDocument(4, "c", DOCUMENT))
    other.write_rules(newer)
    assert other.read_rules() == newer


def test_what_was_half_written_is_removed(kept, again, place_of_lists):
    """What a process that was killed had half written does not stay; what another one may be writing does."""
    left = place_of_lists.with_name("lists.4711")
    left.write_bytes(b"half of a million addresses")
    again().open()
    assert left.exists()
    kept.lists.add(whole(4, "x"))
    kept.close()
    again().open()
    assert not left.exists()
    assert place_of_lists.exists()


@pytest.fixture
def place_of_lists(kept):
    return kept.lists.path


@pytest.mark.parametrize("place", range(0, 400, 7))
def test_a_damaged_file_is_refused(kept, again, place):
    """One bit that is not as it was written, anywhere in the file, and it is not used; the reason names the file."""
    kept.write_rules(SNAPSHOT)
    path = kept.directory / "rules"
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 4
    path.write_bytes(content)
    with pytest.raises(Damaged, match="rules"):
        again().read_rules()


def test_a_file_of_another_kind_is_refused(kept, again):
    """A file of another release with a good checksum is refused by its form."""
    kept.subjects.add(SubjectChanges("a", 0, 1, True, [SubjectEntry("user:1", "pro")], []))
    (kept.directory / "rules").write_bytes((kept.directory / "subjects").read_bytes())
    with pytest.raises(Damaged, match="another release"):
        again().read_rules()


def test_changes_follow_what_is_whole(kept, again, fill):
    """A table comes back with all changes since it was whole, at its revision, and goes on from there after a restart."""
    kept.lists.add(whole(0, "a", more=True, cursor="c"))
    assert list(again().lists.read()) == []
    kept.lists.add(whole(4, "b", full=False))
    kept.lists.add(since(4, 5, "c"))
    second = again()
    lists, table = fill(second)
    assert (lists.revision, lists.incarnation, len(lists)) == (5, "a", 3)
    table._take(since(5, 6, "d"))
    lists, table = fill(again())
    assert (lists.revision, len(lists), table.kept_error) == (6, 4, None)


def test_an_end_that_is_missing(kept, again, fill):
    """After a crash in the middle of writing the table is what it was before that, and what comes next is written in its place."""
    kept.lists.add(whole(4, "a"))
    path = kept.directory / "lists"
    before = path.stat().st_size
    kept.lists.add(since(4, 5, "b"))
    kept.close()
    content = path.read_bytes()
    for cut in range(before, len(content)):
        path.write_bytes(content[:cut])
        lists, table = fill(again())
        assert (lists.revision, len(lists), table.kept_error) == (4, 1, None)
        table._take(since(4, 6, "c"))
        lists, _ = fill(again())
        assert (lists.revision, lists.get(("block", "user", "c")) is not None) == (6, True)


def test_a_damaged_table_is_empty(kept, again, fill):
    """A table whose file is damaged behind its first record is not used in part: it is empty, asks for all, and says why."""
    kept.lists.add(whole(4, "a"))
    kept.lists.add(since(4, 5, "b"))
    kept.close()
    path = kept.directory / "lists"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    second = again()
    lists, table = fill(second)
    assert (lists.revision, lists.incarnation, len(lists)) == (0, "", 0)
    assert str(path) in table.kept_error
    table._take(whole(6, "z"))
    assert table.kept_error is None
    lists, table = fill(again())
    assert (lists.revision, len(lists)) == (6, 1)


def test_a_disk_that_is_full(kept, again, fill, monkeypatch):
    """Where nothing can be written the table in memory is right, says so, and is kept again from the next time it is whole."""
    lists, table = fill(kept)
    table._take(whole(4, "a"))

    def full(_file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(kept_module, "_sync", full)
        table._take(since(4, 5, "b"))
    assert (lists.revision, table.kept_error) == (5, "[Errno 28] No space left on device")
    table._take(since(5, 6, "c"))
    assert fill(again())[0].revision in (4, 5)
    table._take(whole(7, "d"))
    assert table.kept_error is None
    assert fill(again())[0].revision == 7


def test_what_is_too_large(kept, again, monkeypatch):
    """A file above its bound is neither written nor read."""
    monkeypatch.setattr(kept_module, "KEPT_TABLE_BYTES_MAX", 300)
    with pytest.raises(OSError, match="more than 300 bytes"):
        kept.lists.add(whole(4, *(f"user{number}" for number in range(100))))
    assert list(again().lists.read()) == []
    (kept.directory / "lists").write_bytes(b"x" * 301)
    with pytest.raises(Damaged, match="at most 300"):
        list(again().lists.read())


def test_changes_outgrow_the_whole(kept, monkeypatch):
    """When changes take far more room than what they change, the whole is asked for, and takes their place."""
    monkeypatch.setattr(kept_module, "_SPARE_BYTES", 1_000)
    kept.lists.add(whole(1, "a"))
    revision = 1
    while not kept.lists.is_long:
        kept.lists.add(since(revision, revision + 1, "b" * 50))
        revision += 1
        assert revision < 100
    kept.lists.add(whole(revision, "a"))
    assert not kept.lists.is_long
    assert (kept.directory / "lists").stat().st_size < 200
