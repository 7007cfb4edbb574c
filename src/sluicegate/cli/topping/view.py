"""The screen of ``sluicegate top`` as lines of text, for a terminal of any size and for none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from sluicegate.analytics.offenders.names import is_digest
from sluicegate.cli.remote.render import told, when
from sluicegate.clock import US_PER_S
from sluicegate.control.offenders import OVERALL
from sluicegate.rules.identity.addresses import canonical_ip

__all__ = ["SORTS", "Line", "View", "lines"]

SORTS: Final = ("times", "now", "client", "rule")
"""What rows may be sorted by; the first at the beginning."""

_RULES_SHOWN: Final = 6
_CLIENT_MIN: Final = 16
_RULE_MAX: Final = 28


class Line(NamedTuple):
    """A line and how it looks: "", "title", "head", "bad" or "dim"."""

    text: str
    style: str = ""


@dataclass(slots=True)
class View:
    """What is looked at. ``window``: as it is written, "" where it is known by its ends. ``find``: the client looked for. ``kind``: of whom. ``keys``: a line says which there
    are. ``trouble``: why what is shown is not of now."""

    window: str
    rule: str = ""
    sort: str = SORTS[0]
    keys: bool = False
    trouble: str = ""
    find: str = ""
    kind: Literal["refused", "asked"] = "refused"


class _Column(NamedTuple):
    head: str
    cell: Callable[[int, dict[str, Any]], str]
    right: bool = True


def lines(answer: dict[str, Any], view: View, width: int = 100, height: int | None = None) -> list[Line]:
    """``answer``: as ``GET /v1/offenders`` gives it. ``width``: no line is wider. ``height``: rows that do not fit are left out; None: none are."""
    made = [*_head(answer, view), *_rules(answer)]
    if view.trouble:
        made.append(Line(told(view.trouble), "bad"))
    made.append(Line(""))
    foot = []
    if view.keys:
        foot.append(Line(f"q quit  r rule  w window  s sort ({view.sort})  k kind ({view.kind})", "dim"))
    rows = answer["rows"]
    if rows:
        left = None if height is None else max(height - len(made) - len(foot) - 1, 1)
        made += _table(answer, view, width, left)
    else:
        made += [Line(text) for text in _nobody(answer, view)]
    made = [*made[: height - len(foot)], *foot] if height is not None else made + foot
    return [Line(_fitted(line.text, width), line.style) for line in made]


def _head(answer: dict[str, Any], view: View) -> list[Line]:
    requests, refused = answer["requests"], answer["refused"]
    share = f" ({100 * refused / requests:.1f} %)" if requests else ""
    rule = {"": "each rule", OVERALL: "all rules together"}.get(view.rule, f"rule {told(view.rule)}")
    nodes = answer["nodes"]
    named = f": {', '.join(map(told, nodes[:3]))}{', ...' if len(nodes) > 3 else ''}" if nodes else ""
    dropped = answer["dropped"]
    since, until = _time(answer["since_us"]), _time(min(answer["until_us"], max(answer["now_us"], answer["since_us"])))
    return [
        Line(
            f"sluicegate top - {f'{told(view.window)}, ' if view.window else ''}{since} to {until} UTC, {rule}, nodes {len(nodes)}{named}",
            "title",
        ),
        Line(
            f"decisions {requests:,}, {_rate(answer['per_s'])}/s {'at the end' if _is_past(answer) else 'now'}; allowed {answer['allowed']:,}; refused {refused:,}{share}; "
            f"dropped {dropped.get('decisions', 0):,}",
            "bad" if dropped.get("decisions") else "",
        ),
    ]


def _is_past(answer: dict[str, Any]) -> bool:
    """Whether the window ended before it was looked at, by more than the minute it is widened to."""
    return bool(answer["until_us"] < answer["now_us"])


def _rules(answer: dict[str, Any]) -> list[Line]:
    rules = answer["rules"]
    made = []
    width = min(max((cell_len(told(row["rule"])) for row in rules[:_RULES_SHOWN]), default=0), _RULE_MAX)
    for row in rules[:_RULES_SHOWN]:
        applied = sum(row[name] for name in ("allowed", "refused", "shadow_refused", "undecided"))
        share = f" ({100 * row['refused'] / applied:.1f} %)" if row["refused"] else ""
        more = "".join(
            f"  {name} {row[field]:,}"
            for name, field in (("shadow refused", "shadow_refused"), ("undecided", "undecided"))
            if row[field]
        )
        name = set_cell_size(told(row["rule"]), width)
        made.append(Line(f"  {name}  allowed {row['allowed']:,}  refused {row['refused']:,}{share}{more}"))
    if len(rules) > _RULES_SHOWN:
        made.append(Line(f"  and {len(rules) - _RULES_SHOWN} more rules", "dim"))
    return made


def _nobody(answer: dict[str, Any], view: View) -> list[str]:
    is_refused = answer["kind"] == "refused"
    newest_us = answer["newest_us"]
    if newest_us is None:
        return ["nothing is recorded yet"]
    if view.find:
        said = [f"{told(view.find)} is not among those who {'were refused' if is_refused else 'asked'} in this window"]
    else:
        said = [f"nobody {'was refused' if is_refused else 'asked'} in this window"]
    if answer["error"]:
        said[0] += f", or nobody who is known: a client that is not came at most {answer['error']:,} times"
    if view.rule not in {"", OVERALL} and not answer["rules"] and answer["requests"]:
        said.append(f"no request of it was of a rule {told(view.rule)}; without --rule each rule is shown")
    elif view.find and not _has_kind(view.find):
        said.append("a client is looked for with its kind, such as user:8123 or ip:203.0.113.9")
    elif view.find and is_refused and answer["requests"]:
        said.append("--kind asked shows whether it came at all")
    if newest_us <= answer["since_us"]:
        said.append(
            f"the newest decisions are of {when(newest_us)}: look there with --at {when(newest_us)} --window 24h"
        )
    return said


def _has_kind(client: str) -> bool:
    """Whether a client is written so that it can be found: with its kind, as a digest, or as an address."""
    if ":" in client or is_digest(client):
        return True
    try:
        return bool(canonical_ip(client))
    except ValueError:
        return False


def _table(answer: dict[str, Any], view: View, width: int, most: int | None) -> list[Line]:
    rows = sorted(answer["rows"], key=_order(view.sort))
    shown = rows[:most]
    what = "REFUSED" if answer["kind"] == "refused" else "ASKED"
    about = "~" if answer["sample_rate"] < 1 else ""
    rank = _Column("#", lambda place, _: str(place + 1))
    rule = _Column("RULE", lambda _, row: _fitted(told(row["rule"] or OVERALL), _RULE_MAX), right=False)
    now = _Column(
        "END/S" if _is_past(answer) else "NOW/S", lambda _, row: "-" if row["per_s"] is None else _rate(row["per_s"])
    )
    times = _Column(what, lambda _, row: f"{about}{row['times']:,}")
    share = _Column("SHARE", lambda _, row: "-" if row["share"] is None else f"{100 * row['share']:.1f} %")
    error = _Column("-ERR", lambda _, row: f"{row['error']:,}")
    chosen = [rank, rule, now, times, share, error]
    # On a narrow terminal the client comes first, then how often.
    for gone in (error, share, rank, now, rule):
        if _width(chosen, shown) + _CLIENT_MIN <= width:
            break
        chosen.remove(gone)
    cells = [[column.cell(place, row) for column in chosen] for place, row in enumerate(shown)]
    sizes = [max(map(cell_len, (column.head, *(row[at] for row in cells)))) for at, column in enumerate(chosen)]
    made = [Line(_joined([column.head for column in chosen], sizes, chosen, "CLIENT"), "head")]
    made += [Line(_joined(row, sizes, chosen, _client(data))) for row, data in zip(cells, shown, strict=True)]
    return made


def _client(row: dict[str, Any]) -> str:
    """By its name where that is known."""
    return told(row.get("name") or row["subject"])


def _order(sort: str) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        first = {
            "times": -row["times"],
            "now": -(row["per_s"] or 0),
            "client": row["subject"],
            "rule": row["rule"],
        }[sort]
        return first, -row["times"], row["rule"], row["subject"]

    return key


def _width(columns: Sequence[_Column], rows: Sequence[dict[str, Any]]) -> int:
    return sum(
        2 + max(map(cell_len, (column.head, *(column.cell(place, row) for place, row in enumerate(rows)))))
        for column in columns
    )


def _joined(cells: Sequence[str], sizes: Sequence[int], columns: Sequence[_Column], client: str) -> str:
    padded = [
        " " * (size - cell_len(cell)) + cell if column.right else cell + " " * (size - cell_len(cell))
        for cell, size, column in zip(cells, sizes, columns, strict=True)
    ]
    return "  ".join([*padded, client])


def _fitted(text: str, width: int) -> str:
    """The text, cut where it is wider; a character that is two cells wide is never halved."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 0.05 or not per_s else f"{per_s:.3f}"


def _time(us: int) -> str:
    try:
        return f"{datetime.fromtimestamp(us // US_PER_S, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{us} us"
