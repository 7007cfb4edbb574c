"""Clients by seconds: how long, how many, how exact where cells are cut, and in files of before."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from sluicegate.algorithms.space_saving import SpaceSaving
from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.embedded.schema import MIGRATIONS
from sluicegate.analytics.model import Offenders, Span
from sluicegate.bounds import CLIENT_SECONDS_KEPT_S, SECOND_OFFENDERS
from sluicegate.clock import US_PER_S
from sluicegate.events import SCHEMA_VERSION, Batch, SubjectCount, SubjectTotal, batch_id

BASE_S = 1_700_002_800
CELLS = "SELECT count(*) FROM offenders WHERE cell_s = 1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "analytics.db"


@pytest.fixture
def home(path: Path) -> Iterator[EmbeddedHome]:
    made = EmbeddedHome(path)
    yield made
    made.close()


def told(number: int, second: int, stream: list[str], size: int) -> Batch:
    """A second in which these were refused, as a node tells of it that counts in ``size`` counters."""
    seen: SpaceSaving[str] = SpaceSaving(size)
    for client in stream:
        seen.add(client)
    tallies = seen.tallies()
    untold = min((each.times for each in tallies), default=0) if len(tallies) == size else 0
    at_us = (BASE_S + second) * US_PER_S
    return Batch(
        SCHEMA_VERSION,
        batch_id("n", 7, number),
        "n",
        at_us,
        at_us + US_PER_S,
        subjects=[SubjectCount("r", each.key, "refused", each.times, each.error) for each in tallies],
        totals=[SubjectTotal("r", "refused", len(stream), untold)],
    )


def span(since: int, until: int) -> Span:
    return Span((BASE_S + since) * US_PER_S, (BASE_S + until) * US_PER_S)


def rows_of(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute(CELLS).fetchone()[0])


def check(got: Offenders, exact: Counter[str], most: int) -> None:
    """Every bound holds, and the error is at most ``most``."""
    assert got.total == exact.total()
    assert got.error <= most
    rows = {row.subject: row for row in got.rows}
    for client, times in exact.items():
        if client in rows:
            assert rows[client].times - rows[client].error <= times <= rows[client].times, client
        else:
            assert times <= got.error, client


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_where_cells_are_cut(home: EmbeddedHome, path: Path, seed: int) -> None:
    """Of far more clients than a cell keeps, each answer's bounds hold against exact counts, and its error is at most N / k."""
    random = Random(seed)
    streams = {
        second: [f"c{min(int(random.paretovariate(0.6)), 3_000)}" for _ in range(400)] for second in range(-5, 125)
    }
    # Two batches a second: the second of them finds a cell that was cut.
    batches = [
        told(2 * number + half, second, stream[half::2], (80, 300)[number % 2])
        for number, (second, stream) in enumerate(streams.items())
        for half in (0, 1)
    ]
    random.shuffle(batches)
    home.ingest(batches)
    for since, until in ((0, 10), (0, 60), (-5, 7), (0, 120), (-5, 125), (-3_600, 3_600)):
        exact = Counter(client for second, stream in streams.items() if since <= second < until for client in stream)
        got = home.offenders(span(since, until), rule="r", limit=10_000)
        assert not got.more
        check(got, exact, exact.total() // 80 + exact.total() // SECOND_OFFENDERS)
    assert rows_of(path) <= len(streams) * 2 * SECOND_OFFENDERS


def test_seconds_are_kept_for_minutes(home: EmbeddedHome, path: Path) -> None:
    """Clients by seconds go before the counts do; what is asked of the time before is answered by minutes."""
    home.ingest([told(number, number, ["x"], 9) for number in range(400)])
    assert rows_of(path) == 400
    home.prune((BASE_S + 400) * US_PER_S)
    assert rows_of(path) == CLIENT_SECONDS_KEPT_S + 1
    status = home.status()
    assert status.kept_since_us[1] < BASE_S * US_PER_S
    assert status.clients_since_us == (BASE_S + 399 - CLIENT_SECONDS_KEPT_S) * US_PER_S
    assert [row.times for row in home.offenders(span(395, 400), rule="r").rows] == [5]
    assert [row.times for row in home.offenders(span(195, 205), rule="r").rows] == [60]


def test_a_file_of_before(home: EmbeddedHome, path: Path) -> None:
    """What a release before wrote is answered by minutes, also while nothing is written; what is told from then on by seconds."""
    home.ingest([told(number, number, ["x"], 9) for number in range(10)])
    home.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM offenders WHERE cell_s = 1")
        connection.execute("DELETE FROM offender_totals WHERE cell_s = 1")
        connection.execute("DELETE FROM numbers WHERE name = 'clients_since_s'")
        connection.execute("PRAGMA user_version = 1")
    after = EmbeddedHome(path)
    assert [row.times for row in after.offenders(span(3, 5), rule="r").rows] == [10]
    after.ingest([told(number, number, ["x"], 9) for number in range(10, 20)])
    assert after.status().schema == len(MIGRATIONS)
    assert [row.times for row in after.offenders(span(3, 5), rule="r").rows] == [20]
    assert [row.times for row in after.offenders(span(12, 15), rule="r").rows] == [3]
    after.close()
