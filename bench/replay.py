"""How many lines a second a replay decides, beside merely reading and matching them, in one run.

The log is made: 10,000 requests of 1,750 clients in bursts, about half out of order by up to a minute, written again and
again with later times (``SLUICEGATE_ACCESS_LOG`` names a real one to use instead of the made one). Rounds of all contenders alternate
and the median of each is reported, in processor time: lines a second of one core.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from _report import of_rates, tell

from sluicegate.app.replay import Replay, replay
from sluicegate.rules.load import load_rules

LINES = 200_000
ROUNDS = 5
LINES_GOAL = 150_000
RULES = {
    "fixed_window 5/minute per ip": "- {name: one, per: [ip], quota: 5/minute, algorithm: fixed_window}",
    "token_bucket 10/minute per ip": "- {name: one, per: [ip], quota: 10/minute}",
    "per ip and endpoint, one path": "- {name: one, match: {path: /a/**}, per: [ip, endpoint], quota: 10/minute}",
    "three rules, one in shadow": "- {name: all, scope: global, quota: 1000/second}\n"
    "- {name: site, per: [ip], quota: 10/minute}\n"
    "- {name: part, match: {methods: [GET], path: /a/**}, per: [ip, endpoint], quota: 5/minute, mode: shadow}",
}
TIME = re.compile(r"\[([^\]]+)\]")
CLF = "%d/%b/%Y:%H:%M:%S %z"


def made_lines() -> Iterator[tuple[str, datetime, str]]:
    """Lines of a combined log, each cut around its time."""
    rng = random.Random(1)
    begin = datetime(2026, 5, 17, tzinfo=UTC)
    clients = [f"10.{rng.randrange(8)}.{rng.randrange(256)}.{rng.randrange(256)}" for _ in range(1_750)]
    agents = ["Mozilla/5.0 (X11; Linux x86_64; rv:125.0) Gecko/20100101 Firefox/125.0", "curl/8.5.0"]
    for number in range(10_000):
        when = begin + timedelta(seconds=number // 2 - rng.choice([0, 0, rng.randrange(60)]))
        client = clients[int(rng.paretovariate(0.7)) % len(clients)]
        path = f"/{'ab'[rng.random() < 0.5]}/{rng.randrange(300)}"
        yield (
            f"{client} - - [",
            when,
            f'] "GET {path} HTTP/1.1" 200 5120 "http://example.com{path}" "{rng.choice(agents)}"',
        )


def real_lines(path: str) -> Iterator[tuple[str, datetime, str]]:
    """The lines of a log, each cut around its time."""
    for line in Path(path).read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        found = TIME.search(line)
        if found is not None:
            yield line[: found.start(1)], datetime.strptime(found[1], CLF), line[found.end(1) :]


def write_log(path: Path) -> int:
    """Write about ``LINES`` lines; returns how many."""
    source = os.environ.get("SLUICEGATE_ACCESS_LOG")
    lines = list(real_lines(source) if source else made_lines())
    span = max(when for _, when, _ in lines) - min(when for _, when, _ in lines) + timedelta(minutes=10)
    rounds = -(-LINES // len(lines))
    with path.open("w", encoding="utf-8", errors="surrogateescape") as file:
        for number in range(rounds):
            file.writelines(f"{begin}{when + number * span:{CLF}}{end}\n" for begin, when, end in lines)
    return rounds * len(lines)


def ignore(_: int) -> None:
    """Take a report of progress."""


def only_match(path: Path) -> int:
    """What any reader in Python pays: lines, one regular expression, two groups."""
    match = re.compile(r'(\S+) \S+ \S+ \[([^\]]+)\] "([^"]*)" \d{3}').match
    matched = 0
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            found = match(line)
            if found is not None:
                found.group(1, 2)
                matched += 1
    return matched


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "access.log"
        count = write_log(log)
        contenders: dict[str, Callable[[], object]] = {"only read and match the lines": lambda: only_match(log)}
        for name, text in RULES.items():
            what = Replay(rules=load_rules(f"version: 1\nrules:\n{text}\n", "bench"), logs=(str(log),))
            contenders[name] = partial(replay, what, ignore, ignore)
        rounds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, call in contenders.items():
                begun = time.process_time()
                call()
                rounds[name].append((time.process_time() - begun) / count)
    print(f"{count:,} lines{'':20} {'us/line':>8} {'lines/s':>10}")
    for name, times in rounds.items():
        each = statistics.median(times)
        print(f"{name:34} {each * 1e6:8.2f} {1 / each:10,.0f}")
    tell(
        [
            of_rates(f"{name}: lines per CPU second", [1 / each for each in times], "", goal_of(name))
            for name, times in rounds.items()
        ]
    )


def goal_of(name: str) -> float | None:
    """The goal speaks of one rule on a long log."""
    return LINES_GOAL if RULES.get(name, "").count("name:") == 1 else None


if __name__ == "__main__":
    main()
