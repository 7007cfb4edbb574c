"""Whole replays: several logs, comparisons, bad and late lines, what is unknown."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.errors import ConfigurationError
from sluicegate.replaying import Replay, Report
from sluicegate.rules.model import RuleSet

Rules = Callable[[str], RuleSet]
Line = Callable[..., str]
Log = Callable[..., str]
Run = Callable[..., Report]
TWO = "name: two, per: [ip], quota: 2/minute, algorithm: fixed_window"


def test_keys_of_the_json_report(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """The object begins with the entries that programs may rely on, and is JSON."""
    report = replayed(rules(TWO), log([line(0), line(1), line(2), line(90.0)]))
    document = report.to_dict()
    assert list(document)[:7] == ["requests", "bad_lines", "allowed", "refused", "rules", "top_refused", "span_s"]
    assert json.loads(json.dumps(document)) == document
    assert document["rules"] == {"two": {"matched": 4, "refused": 1, "shadow_refused": 0, "also_refused": 0}}
    assert (document["requests"], document["allowed"], document["refused"], document["span_s"]) == (4, 3, 1, 90)
    assert document["top_refused"] == [["ip:10.0.0.1", 1]]
    assert (document["first"], document["last"]) == ("2026-05-17T10:00:00Z", "2026-05-17T10:01:30Z")


def test_logs_are_merged_by_time(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """Requests of several logs, one of them packed, are decided as if they stood in one, in any order on the command line."""
    lines = [line(second, f"10.0.0.{second % 3}") for second in range(90)]
    whole = replayed(rules(TWO), log(lines)).to_dict()
    parts = [log(lines[60:]), log(lines[:60:2]), log(lines[1:60:2])]
    packed = Path(parts[1])
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    for order in (parts, parts[::-1]):
        assert replayed(rules(TWO), *order).to_dict() == whole


def test_bad_lines_are_counted_and_shown(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """Bad lines have their number and reason, the first few are shown in printable ASCII, and blank lines are none."""
    name = log(["", line(0), "\x1b[31mred", "  ", line(1), *["junk"] * 9, line(2)])
    report = replayed(rules(TWO), name)
    assert (report.requests, report.bad_lines, len(report.bad)) == (3, 10, 5)
    assert report.bad[0][:2] == (name, 3)
    assert report.bad[0].text == "'\\x1b[31mred'"
    assert report.bad[1].line == 6
    assert f"{name}:6: " in report.text()
    assert report.text().isprintable() is False
    assert all(part.isprintable() for part in report.text().split("\n"))


def test_line_that_cannot_be_matched_is_bad(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """A path above the bound of the matcher is a bad line where a rule looks at paths, also a thousand times."""
    long = line(1, request=f"GET /{'x' * 5_000} HTTP/1.1")
    report = replayed(rules("name: a, match: {path: /a}, per: [ip], quota: 1/minute"), log([line(0), long, long]))
    assert (report.requests, report.bad_lines) == (1, 2)
    assert "facts.path" in report.bad[0].reason


def test_too_long_line_is_bad(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """A line of unbounded length is one bad line, and the lines around it are decided."""
    report = replayed(rules(TWO), log([line(0), "x" * 700_000, line(1)]))
    assert (report.requests, report.bad_lines) == (2, 1)
    assert report.bad[0][1:] == (2, "it has more than 131072 characters", "(dropped)")


def test_late_lines_are_decided(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """A line behind the window counts at the time the log had reached: here in a minute that is full."""
    lines = [line(0), line(600), line(601), line(720), line(1)]
    report = replayed(rules(TWO), log(lines), window_s=60)
    assert (report.requests, report.late, report.refused) == (5, 1, 0)
    assert report.span_s == 720
    full = [line(0), line(660), line(661), line(662), line(720), line(1)]
    assert replayed(rules(TWO), log(full), window_s=58).refused == 2
    assert "late lines: 1" in report.text()


def test_rules_see_what_the_log_says(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """Methods, paths in any spelling, users and headers of a combined log reach the rules."""
    report = replayed(
        rules(
            "name: login, match: {methods: [POST], path: /login}, per: [ip], quota: 1/hour\n"
            "name: user, match: {user: [alice]}, per: [user], quota: 100/hour\n"
            "name: agent, match: {headers: {User-Agent: agent}}, per: [header.user-agent], quota: 100/hour\n"
            "name: keyed, per: [api_key], quota: 100/hour"
        ),
        log(
            [
                line(0, request="POST /login HTTP/1.1", user="alice"),
                line(1, request="POST //LOGIN/?x=1 HTTP/1.1"),
                line(2, request="GET /login HTTP/1.1"),
                line(3, request="\\x16\\x03"),
            ]
        ),
    )
    matched = {name: counts.matched for name, counts in report.rules.items()}
    assert matched == {"login": 2, "user": 1, "agent": 4, "keyed": 0}
    assert report.refused == 1
    assert report.unknown_facts == {"api_key": "keyed"}
    assert "no line knows api_key, which the rule 'keyed' looks at" in report.text()


def test_clients_in_every_spelling(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """Addresses of one client count together, host names as they are, and a shared counter's refusals by client."""
    clients = [
        "::ffff:10.0.0.1",
        "10.0.0.1",
        "2001:db8::1",
        "2001:db8::2",
        "Crawler.example.com",
        "crawler.example.com",
        "-",
    ]
    report = replayed(rules("name: one, per: [ip], quota: 1/hour"), log([line(n, ip) for n, ip in enumerate(clients)]))
    assert report.top_refused == [("ip:10.0.0.1", 1), ("ip:2001:db8::/64", 1), ("ip:crawler.example.com", 1)]
    shared = replayed(
        rules("name: all, quota: 1/hour"), log([line(0, "10.0.0.1"), line(1, "10.0.0.2"), line(2, "h.example")])
    )
    assert shared.top_refused == [("ip:10.0.0.2", 1), ("ip:h.example", 1)]


def test_against(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """Both rule sets decide on their own; what differs is counted by rule and by client, in both directions."""
    lines = [line(n, f"10.0.0.{n % 2}", request=f"GET /{'ab'[n % 2]} HTTP/1.1") for n in range(8)]
    new = rules("name: tight, match: {path: /a}, per: [ip], quota: 1/hour")
    old = rules(
        "name: old-a, match: {path: /a}, per: [ip], quota: 3/hour\nname: old-b, match: {path: /b}, per: [ip], quota: 2/hour"
    )
    name = log(lines)
    report = replayed(new, name, against=old)
    alone = replayed(old, name)
    assert report.against is not None
    assert (report.refused, report.against.refused, alone.refused) == (3, 3, 3)
    assert report.against.rules == alone.rules
    assert (report.against.newly_refused, report.against.newly_allowed) == (2, 2)
    assert report.against.newly_refused_by == {"tight": 2}
    assert report.against.newly_allowed_by == {"old-b": 2}
    assert report.against.top_newly_refused == [("ip:10.0.0.0", 2)]
    assert report.against.top_newly_allowed == [("ip:10.0.0.1", 2)]
    document: Any = report.to_dict()["against"]
    assert (document["allowed"], document["newly_refused_by_rule"]) == (5, {"tight": 2})
    assert "newly refused 2, newly allowed 2" in report.text()
    same = replayed(new, name, against=new).against
    assert same is not None
    assert (same.newly_refused, same.newly_allowed) == (0, 0)


def test_text_and_json_logs_together(rules: Rules, line: Line, log: Log, replayed: Run) -> None:
    """With auto each log has its own format; lines of the other one in it are bad."""
    entry = json.dumps({"ts": "2026-05-17T10:00:01Z", "ip": "10.0.0.1"})
    report = replayed(rules(TWO), log([line(0), entry, line(2)]), log(["", entry, line(0), entry]))
    assert (report.requests, report.bad_lines, report.refused) == (4, 2, 2)


def test_mapped_fields(rules: Rules, log: Log, replayed: Run) -> None:
    """``fields`` give rules facts that the log calls otherwise."""
    lines = [json.dumps({"at": 1_700_000_000 + n, "who": {"shop": "s1"}}) for n in range(3)]
    ruleset = rules("name: shop, per: [tenant], quota: 1/hour")
    report = replayed(ruleset, log(lines), fields=["at=time", "who.shop=tenant"])
    assert report.top_refused == [("tenant:s1", 2)]
    with pytest.raises(ConfigurationError, match=r"no valid line.*3 bad.*--map FIELD=time"):
        replayed(ruleset, log(lines))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"log_format": "xml"}, "format.*xml"),
        ({"window_us": -1}, "window.*-1"),
        ({"logs": ()}, "logs.*0"),
        ({"logs": ("a",) * 200}, "logs.*200"),
        ({"logs": ("-", "a", "-")}, "standard input"),
        ({"fields": ("a=b",)}, "a=b"),
        ({"fields": ("a=ip",), "log_format": "combined"}, "combined"),
    ],
)
def test_what_cannot_be_meant(rules: Rules, more: dict[str, Any], words: str) -> None:
    """Values that make no sense are refused before a log is opened."""
    with pytest.raises(ConfigurationError, match=words):
        Replay(**({"rules": rules(TWO), "logs": ("a",)} | more))


@pytest.mark.parametrize("lines", [[], ["", " "], ["junk"]])
def test_log_without_a_valid_line(rules: Rules, log: Log, replayed: Run, lines: list[str]) -> None:
    """Where nothing was decided there is no report: an empty answer would look like a good one."""
    with pytest.raises(ConfigurationError, match="no valid line in"):
        replayed(rules(TWO), log(lines))


def test_memory_does_not_grow_with_distinct_lines(
    rules: Rules, line: Line, log: Log, replayed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memo of requests is emptied when it is full, with the same result."""
    lines = [line(n // 4, request=f"GET /{n} HTTP/1.1") for n in range(400)]
    text = "name: p, match: {path: /**}, per: [ip], quota: 2/minute"
    expected = replayed(rules(text), log(lines)).to_dict()
    monkeypatch.setattr("sluicegate.replaying.planner.REPLAY_MEMO_MAX", 3)
    assert replayed(rules(text), log(lines)).to_dict() == expected
    monkeypatch.setattr("sluicegate.replaying.planner.REPLAY_MEMO_CHARS_MAX", 0)
    assert replayed(rules(text), log(lines)).to_dict() == expected
