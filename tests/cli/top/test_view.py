"""The screen of ``sluicegate top`` on terminals of any size."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from sluicegate.cli.topping.view import SORTS, View, lines

US = 1_000_000


def row(number: int, subject: str = "", rule: str = "login") -> dict[str, Any]:
    """A client that was refused the less the higher its number."""
    times = 1_000_000 // (number + 1)
    name = subject or f"{number:016x}"
    return {"rule": rule, "subject": name, "times": times, "error": 3, "share": 0.25, "per_s": float(number)}


def answer(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As ``GET /v1/offenders`` gives it."""
    rule = {"rule": "login", "allowed": 90, "refused": 10, "shadow_refused": 2, "undecided": 1}
    return {
        "kind": "refused", "rule": "", "now_us": 1_000 * US, "since_us": 0, "until_us": 1_020 * US, "rows": list(rows),
        "total": 100, "error": 0, "more": False, "sample_rate": 1.0, "requests": 100, "allowed": 90, "refused": 10,
        "per_s": 1.5, "rules": [rule], "nodes": ["a"], "dropped": {}, "newest_us": 1_000 * US, **more,
    }  # fmt: skip


def text(found: dict[str, Any], view: View | None = None, width: int = 100, height: int | None = None) -> list[str]:
    """The lines without their styles."""
    return [line.text for line in lines(found, view or View("15m"), width, height)]


def test_columns() -> None:
    """Rank, rule, rate, times, share, error, client; and above them what each rule did."""
    shown = text(answer(row(0), row(1)))
    assert shown[0].startswith(
        "sluicegate top - 15m, 1970-01-01 00:00:00 to 1970-01-01 00:16:40 UTC, each rule, nodes 1: a"
    )
    assert shown[1] == "decisions 100, 1.5/s now; allowed 90; refused 10 (10.0 %); dropped 0"
    assert shown[2] == "  login  allowed 90  refused 10 (9.7 %)  shadow refused 2  undecided 1"
    assert shown[4].split() == ["#", "RULE", "NOW/S", "REFUSED", "SHARE", "-ERR", "CLIENT"]
    assert shown[5].split() == ["1", "login", "0.0", "1,000,000", "25.0", "%", "3", "0000000000000000"]


@pytest.mark.parametrize("width", [1, 5, 17, 25, 40, 60, 80, 132])
@pytest.mark.parametrize("height", [1, 2, 5, 8, 24])
def test_never_wider_nor_higher_than_the_terminal(width: int, height: int) -> None:
    """No line is wider than the terminal in cells, wide characters included, and there are not more than it has."""
    found = answer(
        row(0, "user:日本語の名前がとても長い"), row(1, rule="規則" * 30), *(row(number) for number in range(2, 100))
    )
    shown = text(found, View("15m", keys=True), width, height)
    assert len(shown) <= height
    assert max(map(cell_len, shown)) <= width


def test_narrow_keeps_client_and_count() -> None:
    """On a narrow terminal columns go until client and count are left."""
    shown = text(answer(row(0)), width=30)
    assert shown[-1].split() == ["1,000,000", "0000000000000000"]


def test_ten_thousand_rows() -> None:
    """Of many rows those that fit are shown, the most refused first; without a height all are."""
    many = [row(number) for number in range(10_000)]
    assert text(answer(*many), height=24)[5].endswith("0" * 16)
    assert len(text(answer(*many), height=24)) == 24
    assert len(text(answer(*many))) == 10_005


@pytest.mark.parametrize(
    "name", ["user:\x1b[2J\x1b]0;x\x07", "user:a\nb\r\tc", "user:\u202eevil", "user:\x9b31m", "\ud800"]
)
def test_names_are_no_commands(name: str) -> None:
    """What a client or a node calls itself is shown escaped: no control character, bidi override or lone surrogate reaches the terminal."""
    found = answer(row(0, name, rule=name), nodes=[name], rules=[])
    shown = "".join(text(found, View("15m", rule=name, trouble=name)))
    assert shown.isprintable()


def test_nobody() -> None:
    """No rows: it says so, when nothing is recorded, and where to look if all is older."""
    assert text(answer(newest_us=None))[-1] == "nothing is recorded yet"
    assert text(answer())[-1] == "nobody was refused in this window"
    assert "came at most 7 times" in text(answer(error=7))[-1]
    assert text(answer(since_us=2_000 * US, until_us=3_000 * US), width=120)[-1] == (
        "the newest decisions are of 1970-01-01T00:16:40Z: look there with --at 1970-01-01T00:16:40Z --window 24h"
    )


def test_a_client_who_is_not_there() -> None:
    """Who is looked for in vain is named; a rule that decided nothing and a name without its kind are told as what is wrong."""
    assert text(answer(), View("15m", find="user:8"))[-2:] == [
        "user:8 is not among those who were refused in this window",
        "--kind asked shows whether it came at all",
    ]
    assert "asked in this window" in text(answer(kind="asked"), View("15m", find="user:8"))[-1]
    assert text(answer(), View("15m", find="8"))[-1] == (
        "a client is looked for with its kind, such as user:8123 or ip:203.0.113.9"
    )
    assert "no request of it was of a rule lgin" in text(answer(rules=[], rule="lgin"), View("15m", rule="lgin"))[-1]


def test_a_window_by_its_ends_has_no_length_as_written() -> None:
    """With ``--since`` only the two ends are told."""
    assert text(answer(), View(""))[0].startswith("sluicegate top - 1970-01-01 00:00:00 to ")


def test_a_name_that_is_known_is_shown() -> None:
    """A row that has a name shows it; what a terminal could take for a command is escaped in it too."""
    named = {**row(0), "name": "ip:10.0.0.1\x1b[2J"}
    assert text(answer(named))[-1].endswith("ip:10.0.0.1\\x1b[2J")


def test_past_is_not_now() -> None:
    """Of a window that is over, rates are those at its end and called so."""
    shown = text(answer(row(0), until_us=60 * US))
    assert "1.5/s at the end" in shown[1]
    assert "END/S" in shown[4]


@pytest.mark.parametrize(("sort", "first"), list(zip(SORTS, ["a", "c", "a", "b"], strict=True)))
def test_sorts(sort: str, first: str) -> None:
    """Rows by times, by what is now, by client and by rule."""
    rows = (row(0, "a", "y"), row(1, "b", "x"), row(2, "c", "z"))
    assert text(answer(*rows), View("15m", sort=sort))[5].endswith(first)


def test_estimates_and_unknowns_are_marked() -> None:
    """Sampled numbers have a tilde; what is not known is a dash; a loss of decisions is told in red."""
    unknown = {**row(0), "share": None, "per_s": None}
    shown = lines(answer(unknown, sample_rate=0.5, dropped={"decisions": 5}), View("15m"))
    assert shown[-1].text.split()[2:5] == ["-", "~1,000,000", "-"]
    assert shown[1] == ("decisions 100, 1.5/s now; allowed 90; refused 10 (10.0 %); dropped 5", "bad")


def test_many_rules_are_cut() -> None:
    """Of many rules the first are shown, and how many are not."""
    rules = [{"rule": f"r{n}", "allowed": 1, "refused": 0, "shadow_refused": 0, "undecided": 0} for n in range(9)]
    assert "  and 3 more rules" in text(answer(rules=rules))
