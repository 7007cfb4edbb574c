"""``sluicegate top`` on a data directory: once, as JSON, and live on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.cli.root import run

RULES = "version: 1\nrules:\n  - {name: two, per: [ip], quota: 2/minute, algorithm: fixed_window}\n"
AT = ("--at", "2025-05-17T10:01:00Z", "--window", "1h")

Top = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with rules and a log, of which three of six requests are refused; without settings of ours."""
    for name in [name for name in os.environ if name.startswith("SLUICEGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").write_text(RULES)
    lines = [
        f'10.0.0.{1 + (n == 5)} - - [17/May/2025:10:00:0{n} +0000] "GET / HTTP/1.1" 200 5 "-" "a"' for n in range(6)
    ]
    (tmp_path / "access.log").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def top(folder: Path, capsys: pytest.CaptureFixture[str]) -> Top:
    """Replay the log into ``data``, then run top there."""

    def call(*arguments: str, record: tuple[str, ...] = ()) -> tuple[int, str, str]:
        if not (folder / "data").exists():
            assert run(["replay", "--rules", "rules.yaml", "--record", "--data", "data", *record, "access.log"]) == 0
        capsys.readouterr()
        status = run(["top", "--data", "data", *arguments])
        told = capsys.readouterr()
        return status, told.out, told.err

    return call


def test_replay_says_what_was_recorded_and_what_is_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that it names shows what was recorded; recorded twice is recorded once."""
    for _ in range(2):
        assert run(["replay", "--rules", "rules.yaml", "--record", "--data", "data", "access.log"]) == 0
        recorded, following = capsys.readouterr().out.splitlines()[-2:]
        assert recorded == "recorded 6 decisions, 1 minute, in data/analytics.db"
        assert run(following.removeprefix("next: sluicegate ").split()) == 0
        assert "decisions 6" in capsys.readouterr().out


def test_other_rules_on_the_same_log_are_said_to_be_added(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that is recorded under other rules as well is counted for both, and that is said."""
    for rules in (RULES, RULES.replace("2/minute", "1/minute")):
        (folder / "rules.yaml").write_text(rules)
        assert run(["replay", "--rules", "rules.yaml", "--record", "--data", "data", "access.log"]) == 0
    assert "with what else is there of that time, 12" in capsys.readouterr().out


def test_json_of_replay_stays_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With ``--json`` what was recorded is said on standard error."""
    assert run(["replay", "--json", "--rules", "rules.yaml", "--record", "--data", "data", "access.log"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["requests"] == 6
    assert told.err.startswith("recorded 6 decisions")


def test_once(top: Top) -> None:
    """Without a terminal it prints once: clients are digests, and nobody's address is anywhere in the directory."""
    status, out, err = top(*AT)
    assert (status, err) == (0, "")
    assert "two  allowed 3  refused 3 (50.0 %)" in out
    assert out.splitlines()[-1].split()[-2:-1] == ["0"]
    assert "10.0.0.1" not in out
    assert b"10.0.0.1" not in b"".join(file.read_bytes() for file in Path("data").iterdir())


def test_find_looks_a_client_up(top: Top) -> None:
    """A candidate is hashed and its row shown; who is not there has none."""
    _, all_of_them, _ = top(*AT)
    _, found, _ = top(*AT, "--find", "ip:10.0.0.1")
    assert found.splitlines()[-1] == all_of_them.splitlines()[-1]
    assert top(*AT, "--find", "10.0.0.1")[1].splitlines()[-1] == found.splitlines()[-1], "an address needs no kind"
    _, nobody, _ = top(*AT, "--find", "ip:10.9.9.9")
    assert "ip:10.9.9.9 is not among those who were refused in this window" in nobody
    assert "--kind asked" in nobody


def test_names_of_a_file_stand_in_the_place_of_digests(top: Top) -> None:
    """Who is in the file is named, as the line has it; others stay digests, and JSON has both."""
    Path("names").write_text("10.0.0.1\n\n10.9.9.9\n10.0.0.1\n")
    assert top(*AT, "--names", "names")[1].splitlines()[-1].endswith("  10.0.0.1")
    (row,) = json.loads(top(*AT, "--names", "names", "--json", "--limit", "1")[1])["rows"]
    assert (row["name"], len(row["subject"])) == ("10.0.0.1", 16)
    Path("names").write_text("10.9.9.9\n")
    assert top(*AT, "--names", "names")[1] == top(*AT)[1]


def test_names_that_cannot_be_used_are_an_error(top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is missing or too long is named with the flag; a service has no names of a file."""
    status, _, err = top(*AT, "--names", "absent")
    assert (status, "--names: cannot read 'absent'" in err) == (2, True)
    monkeypatch.setattr("sluicegate.cli.topping.named.TOP_NAMES_MAX", 1)
    Path("names").write_text("10.0.0.1\n10.0.0.2\n")
    assert "more than 1 different clients" in top(*AT, "--names", "names")[2]
    assert run(["top", "--server", "http://127.0.0.1:1", "--names", "names"]) == 2


def test_plain_by_setting(top: Top) -> None:
    """With ``--analytics-subjects plain`` clients are shown as themselves."""
    _, out, _ = top(*AT, record=("--analytics-subjects", "plain"))
    assert out.splitlines()[-1].endswith("ip:10.0.0.1")


def test_json_and_filters(top: Top) -> None:
    """``--json`` gives what the interface of the service would; rule, kind and limit choose."""
    _, out, _ = top(*AT, "--json", "--kind", "asked", "--limit", "1", "--rule", "*")
    told = json.loads(out)
    assert [(row["rule"], row["times"]) for row in told["rows"]] == [("", 5)]
    assert (told["more"], told["total"], told["requests"]) == (True, 6, 6)
    assert json.loads(top(*AT, "--json", "--rule", "other")[1])["rows"] == []


def test_since_and_until(top: Top) -> None:
    """A window may be given by its two ends."""
    _, out, _ = top("--since", "2025-05-17T10:00:00Z", "--until", "2025-05-17T10:01:00Z", "--json")
    told = json.loads(out)
    assert (told["until_us"] - told["since_us"], told["requests"]) == (60_000_000, 6)


def test_now_has_nobody_and_says_where_to_look(top: Top) -> None:
    """Of a log of the past nothing is in the last minutes: it says when the newest is."""
    assert "the newest decisions are of 2025-05-17T10:00:01Z" in top()[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--window", "soon"), "window"),
        (("--window", "9999d"), "window: must be above 0 and at most 90 days"),
        (("--limit", "0"), "--limit"),
        (("--kind", "loved"), "--kind"),
        (("--at", "yesterday"), "--at"),
        (("--at", "2025-05-17", "--since", "2025-05-17"), "--at: give it, or --since and --until, not both"),
        (("--until", "2025-05-17"), "--until: it needs --since"),
        (("--since", "2025-05-18", "--until", "2025-05-17"), "window"),
        (("--db", "sqlite:///x"), "--db"),
    ],
)
def test_what_is_wrong_is_named(top: Top, arguments: tuple[str, ...], complaint: str) -> None:
    """Bad usage ends with 2 and names the flag or the field."""
    status, out, err = top(*arguments)
    assert (status, out) == (2, "")
    assert complaint in err


def test_no_directory_is_one_clear_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing was ever recorded it says so, and makes no file."""
    assert run(["top", "--data", "nowhere"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (folder / "nowhere").exists()


def test_live_on_a_terminal(top: Top, folder: Path) -> None:
    """On a terminal it shows itself until ``q``; ``w``, ``r``, ``s`` and ``k`` change what is shown; the terminal is as before."""
    top(*AT)
    primary, secondary = pty.openpty()
    command = [sys.executable, "-m", "sluicegate", "top", "--data", "data", "--every", "500ms", *AT]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    process = subprocess.Popen(
        command, stdin=secondary, stdout=secondary, stderr=secondary, cwd=folder, env=environment
    )
    os.close(secondary)
    seen = b""
    deadline = time.monotonic() + 60

    def until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            assert time.monotonic() < deadline, seen[-2_000:]
            if select.select([primary], [], [], 1)[0]:
                seen += os.read(primary, 65_536)
        seen = seen[seen.index(text) + len(text) :]

    try:
        until(b"1h, 2025-05-17")
        until(b"s sort (times)")
        os.write(primary, b"w")
        until(b"24h, 2025-05-16")
        os.write(primary, b"r")
        until(b"all rules together")
        os.write(primary, b"s")
        until(b"s sort (now)")
        os.write(primary, b"k")
        until(b"k kind (asked)")
        os.write(primary, b"q")
        until(b"\x1b[?1049l")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(primary)
