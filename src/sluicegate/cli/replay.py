"""``sluicegate replay``: a whole access log against a rule file, before anybody is refused."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from sluicegate.bounds import WHATIF_CLIENTS_SHOWN
from sluicegate.cli.options import DurationType, config_option, flag, option
from sluicegate.cli.recorded import Record
from sluicegate.cli.rule_files import read_rules
from sluicegate.clock import US_PER_S
from sluicegate.replaying import FORMATS, Replay, Report
from sluicegate.replaying import replay as run_replay
from sluicegate.rules.model import RuleSet

__all__ = ["replay", "replayed"]

_FILE = click.Path(path_type=Path)


@click.command()
@config_option()
@option("rules", type=_FILE, required=True, metavar="FILE", help="Rule file that decides.")
@option(
    "against", type=_FILE, metavar="FILE", help="Rule file to compare with: says what is newly refused and allowed."
)
@option("format", type=click.Choice(FORMATS), default="auto", help="Of the lines; auto looks at the first.")
@option("window", type=DurationType(), default="120s", help="How far out of order lines may be.")
@option(
    "map",
    multiple=True,
    metavar="FIELD=FACT",
    help="Field of JSON lines that holds a fact, as in ts=time, req.ip=ip or tenant_id=tenant; may be repeated.",
)
@flag("record", help="Keep the decisions in the data directory, at the log's times, for top, suggest and what-if.")
@option("data", type=_FILE, default=".sluicegate", metavar="DIR", help="With --record: the data directory.")
@option(
    "analytics-subjects",
    type=click.Choice(["digest", "plain"]),
    default="digest",
    help="With --record: how clients are kept; a digest tells nobody who it was.",
)
@flag("json", help="Print one JSON object.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=click.Path(allow_dash=True))
def replay(
    rules: Path,
    against: Path | None,
    format: str,  # noqa: A002
    window: float,
    map: tuple[str, ...],  # noqa: A002
    record: bool,
    data: Path,
    analytics_subjects: str,
    json: bool,
    logs: tuple[str, ...],
) -> int:
    """Decide access logs by their own clock and report what would have been refused.

    LOG is a file, plain or gzip, or - for standard input; several are merged by time.
    """
    what = Replay(
        rules=read_rules(rules),
        against=None if against is None else read_rules(against),
        logs=logs,
        log_format=format,
        window_us=round(window * US_PER_S),
        fields=map,
    )
    kept = Record(what.rules, data, plain=analytics_subjects == "plain") if record else None
    with _progress() as (started, advanced):
        report = run_replay(what, started, advanced, None if kept is None else kept.recording)
    said = "" if kept is None else kept.end(report)
    click.echo(json_format.dumps(report.to_dict(), indent=2) if json else report.text())
    if said:
        click.echo(said if json else f"\n{said}", err=json)
    return 0


def replayed(old: RuleSet, new: RuleSet, logs: Sequence[str]) -> Report:
    """What ``new`` would have decided on these logs, next to ``old``. Raises ConfigurationError."""
    what = Replay(rules=new, against=old, logs=logs, clients_shown=WHATIF_CLIENTS_SHOWN)
    with _progress() as (started, advanced):
        return run_replay(what, started, advanced)


@contextmanager
def _progress() -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar on standard error where that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield (lambda _: None), (lambda _: None)
        return
    columns = (
        TextColumn("replay"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=None)
        yield (lambda size: bar.update(task, total=size or None)), (lambda count: bar.advance(task, count))
