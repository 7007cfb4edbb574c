"""What is the embedded home's own: its file, retention, size, versions, and several processes at once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.analytics.embedded import EmbeddedHome, Retention, streams
from sluicegate.analytics.embedded.cells import Piece, pieces_of
from sluicegate.analytics.embedded.schema import MIGRATIONS
from sluicegate.analytics.home import SinkFull
from sluicegate.analytics.model import CountRow, Span
from sluicegate.bounds import HOUR_OFFENDERS
from sluicegate.clock import US_PER_S
from sluicegate.errors import AnalyticsError
from sluicegate.events import (
    SCHEMA_VERSION,
    Admission,
    Batch,
    DecisionSample,
    RequestCount,
    SubjectCount,
    SubjectTotal,
    Watching,
    batch_id,
)

BASE_S = 1_700_002_800
EVER = Span(0, 2**52)
DAY_S = 86_400


def batch(number: int, second: int = 0, node: str = "n", **parts: Any) -> Batch:
    """One decision at a second from the base, an hour's beginning."""
    at_us = (BASE_S + second) * US_PER_S
    parts = {"requests": [RequestCount("r", "denied", "", 1, 1, 1)], **parts}
    return Batch(SCHEMA_VERSION, batch_id(node, 7, number), node, at_us, at_us + US_PER_S, **parts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "analytics.db"


@pytest.fixture
def home(path: Path) -> Iterator[EmbeddedHome]:
    """A home with the usual retention."""
    made = EmbeddedHome(path)
    yield made
    made.close()


def total(home: EmbeddedHome, span: Span = EVER) -> int:
    return sum(row.decisions for row in home.requests(span))


def pruned(home: EmbeddedHome, now_s: int) -> None:
    """Prune until nothing changes."""
    for _ in range(40):
        home.prune((BASE_S + now_s) * US_PER_S)


def test_retention_by_cells(home: EmbeddedHome) -> None:
    """Seconds, minutes and hours go when their time is over; what longer cells hold of that time stays, and is what is answered."""
    home.ingest([batch(number, second) for number, second in enumerate((0, 90, 3 * 3_600, 4 * DAY_S))])
    pruned(home, 4 * DAY_S)
    assert total(home) == 4
    kept = home.status().kept_since_us
    newest_s = BASE_S + 4 * DAY_S
    assert kept == {1: (newest_s - 3_600) * US_PER_S, 60: (newest_s - 2 * DAY_S) * US_PER_S, 3_600: 0}
    first_hour = home.requests(Span((BASE_S + 30) * US_PER_S, (BASE_S + 31) * US_PER_S))
    assert first_hour == [CountRow(2, 2)]
    assert home.requests(Span(kept[1], kept[1] + US_PER_S)) == []
    home.ingest([batch(9, 200 * DAY_S)])
    pruned(home, 200 * DAY_S)
    assert total(home) == 1


def test_a_clock_ahead_empties_nothing(home: EmbeddedHome) -> None:
    """Retention counts from the newest batch: neither a log of the past nor a wrong clock loses what was just told."""
    home.ingest([batch(0, 5)])
    pruned(home, 5_000 * DAY_S)
    assert home.requests(Span((BASE_S + 5) * US_PER_S, (BASE_S + 6) * US_PER_S)) == [CountRow(1, 1)]


def test_detail_has_a_time(home: EmbeddedHome) -> None:
    """Decisions go after a day, asks after an hour and with them what was watched."""
    parts = {"watch": Watching(1)}
    for number, second in enumerate((0, 2 * 3_600, 2 * DAY_S)):
        at_us = (BASE_S + second) * US_PER_S
        decision = DecisionSample(at_us, "denied", 1.0)
        asked = Admission("r", "s", "token_bucket", 1, 1, 1, 1, at_us, 1, True)
        home.ingest([batch(number, second, decisions=[decision], admissions=[asked], **parts)])
    pruned(home, 2 * DAY_S)
    assert len(home.decisions(EVER)) == 1
    watched = home.admissions(EVER)
    assert (len(watched.admissions), len(watched.levels)) == (1, 1)


def test_the_size_is_bounded(path: Path) -> None:
    """At its size the oldest detail goes first, and counts by hours stay."""
    home = EmbeddedHome(path, Retention(size_max_bytes=4_194_304))
    decisions = [
        DecisionSample(BASE_S * US_PER_S + number, "denied", 1.0, subjects={"ip": f"{number:0400d}"})
        for number in range(10_000)
    ]
    home.ingest([batch(number, number, decisions=decisions[number * 100 : number * 100 + 100]) for number in range(99)])
    assert (home.status().size_bytes or 0) > 4_194_304
    pruned(home, 99)
    with sqlite3.connect(path) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        free = connection.execute("PRAGMA freelist_count").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    assert (pages - free) * size <= 4_194_304
    assert total(home) == 99
    left = home.decisions(EVER, limit=10_000)
    assert 0 < len(left) < 9_900
    assert left[0].decision.at_us == BASE_S * US_PER_S + 9_899
    home.close()


def test_many_clients_of_a_cell(home: EmbeddedHome) -> None:
    """Of more clients than are kept those that came most stay, and each is told with bounds that hold."""
    for number in range(60):
        subjects = [SubjectCount("r", f"c{number}-{each}", "refused", 1 + each % 3) for each in range(30)]
        subjects.append(SubjectCount("r", "often", "refused", 40))
        totals = [SubjectTotal("r", "refused", sum(one.times for one in subjects))]
        home.ingest([batch(number, number, subjects=subjects, totals=totals)])
    for span in (Span(BASE_S * US_PER_S, (BASE_S + 60) * US_PER_S), EVER):
        got = home.offenders(span, rule="r", limit=10_000)
        assert len(got.rows) <= 2 * HOUR_OFFENDERS
        assert got.rows[0].subject == "often"
        assert got.rows[0].times - got.rows[0].error <= 2_400 <= got.rows[0].times
        assert got.rows[0].error <= 3
        assert got.total is not None
        assert 3 <= got.error <= got.total / HOUR_OFFENDERS
        assert got.total == 60 * (30 * 2 + 40)


@pytest.mark.parametrize("order", ["up", "down", "odd"])
def test_ids_are_ranges(path: Path, order: str) -> None:
    """Ids of one life become one row whatever order they come in, and each is new once."""
    numbers = {"up": range(200), "down": reversed(range(200)), "odd": [*range(0, 200, 2), *range(1, 200, 2)]}[order]
    EmbeddedHome(path).ingest([])
    with sqlite3.connect(":memory:") as connection:
        for statement in MIGRATIONS[0][:1]:
            connection.execute(statement)
        numbers = list(numbers)
        assert all(streams.note(connection, f"n/00ff/{number}") for number in numbers)
        assert not any(streams.note(connection, f"n/00ff/{number}") for number in numbers)
        assert connection.execute("SELECT * FROM told").fetchall() == [("n/00ff/", 0, 199)]
    connection.close()


def test_ids_of_any_form() -> None:
    """Ids that differ in anything are two."""
    ids = [
        "a",
        "a/",
        "a/1",
        "a/01",
        "a/1 ",
        "/1",
        "1",
        "a/-1",
        "a/٣",
        f"a/{2**63}",
        "a/1/1",
        "a#",
        "a/99999999999999999999",
    ]
    with sqlite3.connect(":memory:") as connection:
        connection.execute(MIGRATIONS[0][0])
        assert [streams.note(connection, each) for each in ids] == [True] * len(ids)
        assert [streams.note(connection, each) for each in ids] == [False] * len(ids)
    connection.close()


def test_pieces_cover_a_span_once() -> None:
    """Long cells in the middle, short ones at the ends, each second in one of them."""
    span = Span(3_599 * US_PER_S, 7_261 * US_PER_S)
    assert pieces_of(span, 1, 3_600) == [Piece(1, 3_599, 3_600), Piece(3_600, 3_600, 7_200), Piece(60, 7_200, 7_260), Piece(1, 7_260, 7_261)]  # fmt: skip
    assert pieces_of(span, 60, 60) == [Piece(60, 3_540, 7_320)]
    assert pieces_of(Span(5, 5), 1, 3_600) == []


def test_counts_stay_at_the_largest_number(home: EmbeddedHome) -> None:
    """A cell that would overflow stays where it is, and sums over cells go beyond."""
    most = 2**63 - 1
    for number, second in enumerate((0, 0, 5)):
        home.ingest([batch(number, second, requests=[RequestCount("r", "denied", "", 1, most, most)])])
    span = Span(BASE_S * US_PER_S, (BASE_S + 7) * US_PER_S)
    assert home.requests(span) == [CountRow(2 * most, 2 * most)]


def test_a_file_that_is_damaged(home: EmbeddedHome, path: Path) -> None:
    """Damage is told as such, for good; once the file is moved away a new one is made."""
    home.ingest([batch(0)])
    home.close()
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])
    for use in (lambda: home.ingest([batch(1)]), lambda: home.requests(EVER)):
        with pytest.raises(AnalyticsError, match=r"analytics\.db") as caught:
            use()
        assert not caught.value.transient
    for each in path.parent.iterdir():
        each.unlink()
    home.ingest([batch(2)])
    assert total(home) == 1


def test_a_file_that_was_removed(home: EmbeddedHome, path: Path) -> None:
    """Who removes the file begins anew, though a process has it open."""
    home.ingest([batch(0)])
    for each in path.parent.iterdir():
        each.unlink()
    home.ingest([batch(1)])
    assert total(home) == 1


def test_no_file(home: EmbeddedHome, path: Path) -> None:
    """Asking makes no file, and says that nothing was recorded."""
    with pytest.raises(AnalyticsError, match="nothing was recorded"):
        home.requests(EVER)
    assert not path.exists()


def test_a_newer_release(home: EmbeddedHome, path: Path) -> None:
    """A file of a newer release is neither read nor written."""
    home.ingest([batch(0)])
    home.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    for use in (lambda: home.ingest([batch(1)]), lambda: home.requests(EVER)):
        with pytest.raises(AnalyticsError, match="newer release"):
            use()


def test_somebody_else_writes(home: EmbeddedHome, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that holds the file too long is no loss: the same batch may come again. Readers do not wait."""
    monkeypatch.setattr("sluicegate.analytics.embedded.connection.EMBEDDED_HOME_BUSY_MS", 50)
    home.ingest([batch(0)])
    home.close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkFull):
        home.ingest([batch(1)])
    assert total(home) == 1
    other.execute("ROLLBACK")
    other.close()
    home.ingest([batch(1)])
    assert total(home) == 2


def test_all_of_a_batch_or_nothing(home: EmbeddedHome) -> None:
    """A batch that cannot be written leaves nothing behind, and does not count as kept."""
    home.ingest([batch(0)])
    bad = batch(1, subjects=[SubjectCount("r", "\ud800", "refused", 1)], totals=[])
    with pytest.raises(AnalyticsError, match="is no text"):
        home.ingest([bad])
    assert total(home) == 1
    home.ingest([batch(1)])
    assert total(home) == 2


WRITER = """
import sys
from pathlib import Path
from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.home import SinkFull
from sluicegate.events import Batch, RequestCount, batch_id
home = EmbeddedHome(Path(sys.argv[1]))
for number in range(150):
    at_us = (1_700_002_800 + number) * 1_000_000
    made = Batch(1, batch_id(sys.argv[2], 7, number), sys.argv[2], at_us, at_us, requests=[RequestCount("r", "denied", "", 1, 1, 1)])
    while True:
        try:
            home.ingest([made])
            break
        except SinkFull:
            pass
    print(number, flush=True)
"""


@pytest.mark.slow
def test_several_processes_write(home: EmbeddedHome, path: Path) -> None:
    """Processes that begin at once, make the file together and write together lose nothing; one that is killed leaves it whole."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"w{each}"], stdout=subprocess.PIPE, text=True)
        for each in range(4)
    ]
    killed = writers[-1]
    assert killed.stdout is not None
    for line in killed.stdout:
        if int(line) >= 20:
            break
    killed.kill()
    assert [writer.wait(100) for writer in writers[:-1]] == [0, 0, 0]
    killed.wait(100)
    for writer in writers:
        if writer.stdout is not None:
            writer.stdout.close()
    by_node = {row.node: row.decisions for row in home.requests(EVER, by=("node",))}
    assert {by_node[f"w{each}"] for each in range(3)} == {150}
    assert 20 <= by_node["w3"] <= 150
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_threads_ask_while_one_writes(home: EmbeddedHome) -> None:
    """Questions from several threads see whole batches only, and never fewer than before."""
    home.ingest([batch(0)])
    faults: list[object] = []
    done = threading.Event()

    def ask() -> None:
        seen = 0
        while not done.is_set():
            now = total(home)
            counted = home.status().batches
            if now < seen or counted < now:
                faults.append((seen, now, counted))
            seen = now

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 60):
        home.ingest([batch(number, number)])
    done.set()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert total(home) == 60
