"""What commands tell that read: hints at slips, silent nodes, ended rollouts, refusals."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from sluicegate.cli.client import Answer
from sluicegate.cli.remote.connect import Session
from sluicegate.cli.remote.counters import _say as _say_counters
from sluicegate.cli.remote.counters import explain_remote
from sluicegate.cli.remote.operating import is_silent
from sluicegate.cli.remote.render import cut, span
from sluicegate.cli.remote.ruleset import _say_lags

S = 1_000_000
RULES = "{version: 1, rules: [{name: login, match: {path: /login}, per: [user], quota: 5/minute}]}"


@pytest.fixture
def rules(offline: Any, tmp_path: Path) -> Any:
    """Runs commands on a database that has a rule."""
    (tmp_path / "rules.yaml").write_text(RULES)
    assert offline("rules", "apply", "rules.yaml").status == 0
    return offline


@pytest.mark.parametrize(
    "line, hint",
    [
        ("explain --user user:8123 --path /login", "takes the name alone, '8123'"),
        ("counters read --api-key api_key:k1", "--api-key: takes the name alone, 'k1'"),
        ("counters read --rule login --subject 8123", "such as user:8123"),
    ],
)
def test_names_with_and_without_their_kind(rules: Any, line: str, hint: str) -> None:
    """A name that has its kind where it should not, or has none where it should, is refused with what was meant."""
    ran = rules(*line.split())
    assert (ran.status, hint in ran.err) == (2, True), ran.err


def test_an_explanation_without_a_path(rules: Any) -> None:
    """Where no path was given it is said that rules which match paths do not apply; with one it is not."""
    assert "no --path was given" in rules("explain", "--user", "8123").err
    assert "no --path was given" in rules("explain", "--rules", "rules.yaml", "--user", "8123").err
    assert "no --path was given" not in rules("explain", "--rules", "rules.yaml", "--path", "/login").err


def test_why_a_change_was_refused(rules: Any) -> None:
    """The audit trail lists the cause of a refusal beside the reason that was given."""
    assert rules("rules", "delete", "logn", "--if-match", "*", "--reason", "tidy").status == 2
    assert "tidy; refused: there is no rule 'logn'" in rules("audit", "list", "--outcome", "refused").out


def test_one_line_of_the_trail(rules: Any, tmp_path: Path) -> None:
    """A line is shown with what it changed, or why it was refused in full; --since leaves out what is older."""
    rows = json.loads(rules("audit", "list", "--json").out)
    made = next(row for row in rows if row["action"] == "ruleset.put")
    shown = rules("audit", "show", str(made["id"]))
    assert (shown.status, made["hash"] in shown.out, '"login"' in shown.out) == (0, True, True)
    assert rules("rules", "delete", "logn", "--if-match", "*").status == 2
    assert "there is no rule 'logn'" in rules("audit", "show", str(rows[0]["id"] + 1)).out
    assert "there is no line '999'" in rules("audit", "show", "999").err
    assert len(json.loads(rules("audit", "list", "--since", "1h", "--json").out)) == len(rows) + 1
    assert rules("audit", "list", "--since", "2099-01-01").out == "the trail has no such line\n"


def test_nodes_that_are_silent(rules: Any, tmp_path: Path) -> None:
    """A node whose reports have stopped is marked with the time of the last one."""
    told = json.dumps({"node": "n1", "started_us": 1, "release": "x", "applied": {}})
    with closing(sqlite3.connect(tmp_path / "offline" / "control.db")) as connection, connection:
        connection.execute("INSERT INTO nodes (node, last_seen_us, report) VALUES ('n1', 1000000, ?)", (told,))
    assert "silent since 1970-01-01T00:00:01Z" in rules("nodes").out


@pytest.mark.parametrize("interval_s, silent_us", [(0, 15 * S), (5, 15 * S), (60, 180 * S)])
def test_when_a_node_is_silent(interval_s: int, silent_us: int) -> None:
    """A node is silent after three of its intervals, and not within 15 s."""
    row = {"last_seen_us": 7, "report": {"interval_s": interval_s}}
    assert not is_silent(row, 7 + silent_us)
    assert is_silent(row, 8 + silent_us)


def test_the_last_rollout_is_shown(rules: Any, tmp_path: Path) -> None:
    """Without a number the rollout that ended last is shown where none runs, and said to be that; nothing is changed by it."""
    assert "no rollout runs" in rules("rollout", "status").err
    (tmp_path / "candidate.yaml").write_text(RULES.replace("5/minute", "4/minute"))
    assert rules("rollout", "start", "candidate.yaml", "--kind", "shadow").status == 0
    assert rules("rollout", "abort").status == 0
    for name in ("status", "report", "candidate"):
        shown = rules("rollout", name)
        assert (shown.status, "this is the last one, 1" in shown.err) == (0, True)
    assert rules("rollout", "abort").status == 2


def test_long_cells_are_cut() -> None:
    """Of a long text a column has the beginning."""
    assert cut("a" * 60) == "a" * 60
    assert cut("a" * 61) == "a" * 57 + "..."


def test_a_long_change_is_cut(offline: Any, tmp_path: Path) -> None:
    """The list of versions stays readable after a version that changed many rules."""
    names = [f"a-rule-with-a-long-name-{number}" for number in range(40)]
    rows = ", ".join(f"{{name: {name}, per: [user], quota: 5/minute}}" for name in names)
    (tmp_path / "many.yaml").write_text(f"{{version: 1, rules: [{rows}]}}")
    assert offline("rules", "apply", "many.yaml").status == 0
    assert max(map(len, offline("versions", "list").out.splitlines())) < 150


class _Told:
    """A service that gives one answer."""

    def __init__(self, data: Any) -> None:
        self.data = data

    async def ask(self, *_: Any, **__: Any) -> Answer:
        return Answer(self.data)


@pytest.mark.parametrize(
    "us, said",
    [(0, "0 s"), (1_234_567, "1.23 s"), (99_000_000, "99 s"), (1_234_567_890, "1235 s"), (10**13, "10000000 s")],
)
def test_how_far_a_node_is_behind(us: int, said: str) -> None:
    """A length of time is never written with an exponent, however long a node has been behind."""
    assert span(us) == said


def test_what_nodes_say_is_no_command_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and errors that nodes report stay in their line, escapes for terminals written out."""
    nodes = {"n\x1b[2J": {"applied": False, "version": 1, "lag_us": 5 * S, "error": "bad\nnode n2: version 2"}}
    _say_lags(nodes, 2)
    assert capsys.readouterr().out == "node n\\x1b[2J: version 1, not 2, 5 s behind: bad\\nnode n2: version 2\n"


async def test_months_until_a_counter_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds are written out to the millisecond, also where they are millions of them."""
    state = {
        "counter": "login",
        "subject": "user:1",
        "used": 1,
        "limit": 1,
        "wait_ms": 2_678_400_250,
        "full_ms": 1,
        "given": 0,
    }
    answer = {"nodes": [{"node": "", "counters": [state], "reset": 0, "error": ""}], "changed": False}
    _say_counters(answer)
    out = capsys.readouterr().out
    assert "2678400.25 s" in out
    assert "0.001 s" in out


def test_the_head_of_a_version_is_comments(rules: Any, tmp_path: Path) -> None:
    """A reason of several lines leaves what is printed of a version a rules file of the same meaning."""
    rule = {"match": {"path": "/login"}, "per": ["user"], "quota": "6/minute", "reason": "late\nrules: []"}
    (tmp_path / "rule.json").write_text(json.dumps(rule))
    assert rules("rules", "set", "login", "--file", "rule.json").status == 0
    shown = rules("versions", "show", "2").out
    assert "# reason: late\\nrules: []\n" in shown
    (tmp_path / "shown.yaml").write_text(shown)
    assert rules("rules", "diff", "shown.yaml").status == 0


class _Paged:
    """A service that has 1,200 rows."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def ask(self, _method: str, _path: str, *, params: dict[str, str]) -> Answer:
        self.sizes.append(int(params["page_size"]))
        begin = int(params.get("page_token", "0"))
        end = min(begin + self.sizes[-1], 1_200)
        return Answer({"rows": list(range(begin, end)), "next_page_token": str(end) if end < 1_200 else ""})


@pytest.mark.parametrize(
    "limit, sizes, said",
    [
        (3, [3], "there are more than 3; --limit shows them\n"),
        (1_100, [500, 500, 100], "there are more than 1100; --limit shows them\n"),
        (1_200, [500, 500, 200], ""),
        (9_999, [500, 500, 500], ""),
    ],
)
async def test_rows_come_in_pages(limit: int, sizes: list[int], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A list is asked for in pages, up to the limit and no further; that there is more is said, and only then."""
    service = _Paged()
    rows = await Session(cast(Any, service)).rows("/v1/rows", "rows", limit)
    assert rows == list(range(min(limit, 1_200)))
    assert (service.sizes, capsys.readouterr().err) == (sizes, said)


async def test_all_pages() -> None:
    """Without a limit every page comes."""
    pages = Session(cast(Any, _Paged())).pages("/v1/rows", "rows")
    assert [len(page.data["rows"]) async for page in pages] == [500, 500, 200]


async def test_a_bucket_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A rule that is not for this client of a rollout says its bucket once, and so does the one that is."""
    arm = "bucket 7 of 10000, outside the first 5"
    row = {
        "rule": "login",
        "applies": True,
        "quota": "5/minute",
        "subject": "user:1",
        "counters": [],
        "mode": "enforce",
    }
    rows = [
        {**row, "reason": reason, "arm": arm, "override": None, "tier": None} for reason in ("", f"not for it: {arm}")
    ]
    explanation = {"decision": {"allowed": True}, "store_answers": True, "rules": rows}
    told = _Told({"nodes": [{"node": "", "explanation": explanation, "error": ""}], "unknown": ""})
    assert await explain_remote(Session(cast(Any, told)), {}, 1) == 0
    assert [line.count("bucket") for line in capsys.readouterr().out.splitlines()[2:]] == [1, 1]
