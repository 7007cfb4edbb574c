"""Looking where ``--clickhouse`` and ``--analytics-secret-file`` say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from real_clickhouse import ClickHouse

from sluicegate.analytics.clickhouse import ClickHouseHome
from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.home import Home
from sluicegate.analytics.offenders import Names
from sluicegate.cli.root import run
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.events import SCHEMA_VERSION, Batch, RequestCount, SubjectCount, SubjectTotal, batch_id

SECRET = "a secret of several machines"
RULES = "version: 1\nrules:\n  - {name: two, per: [ip], quota: 2/minute}\n"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No flag is set by a variable or a file."""
    for name in [name for name in os.environ if name.startswith("SLUICEGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("shared.secret").write_text(f"{SECRET}\n")
    Path("rules.yaml").write_text(RULES)


def fill(home: Home) -> None:
    """A client by its digest under SECRET, half a minute ago."""
    at_us = SystemClock().now_us() - 30 * US_PER_S
    name = Names([SECRET.encode()])("user:1")
    home.ingest(
        [
            Batch(
                SCHEMA_VERSION,
                batch_id("n", 1, 0),
                "n",
                at_us,
                at_us + US_PER_S,
                requests=[RequestCount("two", "denied", "", 1, 7, 7)],
                subjects=[SubjectCount("two", name, "refused", 7)],
                totals=[SubjectTotal("two", "refused", 7)],
            )
        ]
    )


def found(capsys: pytest.CaptureFixture[str], *words: str) -> list[int]:
    """How often the client came, where it is found."""
    assert run(["top", "--json", "--find", "user:1", *words]) == 0
    return [row["times"] for row in json.loads(capsys.readouterr().out)["rows"]]


def test_secret_of_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is found by the secret of the file that is named, by flag or variable, and not by that of the directory."""
    home = EmbeddedHome(Path("data/analytics.db"))
    fill(home)
    home.close()
    Path("data/analytics.secret").write_text("another secret, of this one\n")
    assert found(capsys, "--data", "data") == []
    assert found(capsys, "--data", "data", "--analytics-secret-file", "shared.secret") == [7]
    monkeypatch.setenv("SLUICEGATE_ANALYTICS_SECRET_FILE", "shared.secret")
    assert found(capsys, "--data", "data") == [7]
    assert run(["top", "--data", "data", "--find", "user:1", "--analytics-secret-file", "none"]) == 2
    assert "cannot use 'none': there is no such file" in capsys.readouterr().err


@pytest.mark.slow
def test_in_clickhouse(
    shared_clickhouse: ClickHouse,
    new_clickhouse_home: Callable[[], ClickHouseHome],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``top`` and ``suggest`` look in ClickHouse where it is named; a directory on the command line beats a variable."""
    home = new_clickhouse_home()
    fill(home)
    url = shared_clickhouse.url(home.settings.database)
    assert found(capsys, "--clickhouse", url, "--analytics-secret-file", "shared.secret") == [7]
    assert found(capsys, "--clickhouse", url, "--analytics-secret-file", "shared.secret", "--window", "5s") == []
    assert run(["suggest", "--rules", "rules.yaml", "--clickhouse", url, "--window", "1h", "--json"]) in {0, 1}
    assert "suggestions" in json.loads(capsys.readouterr().out)
    monkeypatch.setenv("SLUICEGATE_CLICKHOUSE", url)
    assert found(capsys, "--analytics-secret-file", "shared.secret") == [7]
    assert run(["top", "--data", "data"]) == 2
    assert "nothing was recorded there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (
            ["top", "--clickhouse", "clickhouse://db", "--server", "http://127.0.0.1:1"],
            2,
            "give --server or --clickhouse",
        ),
        (["top", "--clickhouse", "http://db"], 2, "must begin with clickhouse://"),
        (["top", "--clickhouse", "clickhouse://u:hunter2@db"], 2, "the URL holds a password"),
        (
            ["suggest", "--clickhouse", "clickhouse://db", "--server", "http://127.0.0.1:1"],
            2,
            "--clickhouse: a service",
        ),
    ],
)
def test_wrong_flags(words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What contradicts is named, and no password is repeated."""
    assert run(words) == status
    text = capsys.readouterr().err
    assert said in text
    assert "hunter2" not in text
