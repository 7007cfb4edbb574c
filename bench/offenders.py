"""What it costs to merge the clients of 100 nodes, and to answer who came most in a day, in processor time.

Nodes tell of 256 clients a second, drawn from 100,000 by a Zipf law, as nodes do. The day is one of minutes, each with the clients of a
minute, in an embedded home.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.offenders import Bounds, Summary, merged
from sluicegate.app.control.offenders import answer
from sluicegate.clock import US_PER_S
from sluicegate.control.offenders import OffendersQuestion
from sluicegate.events import Batch, RequestCount, RuleCount, SubjectCount, SubjectTotal

NODES, INTERVALS, TOLD, CLIENTS = 100, 10, 256, 100_000
MINUTES = 24 * 60
ROUNDS = 5


def main() -> None:
    rng = random.Random(7)
    names = [f"{number:016x}" for number in range(CLIENTS)]
    weights = [1 / (rank + 1) for rank in range(CLIENTS)]
    summaries = []
    for _ in range(NODES * INTERVALS):
        drawn = set(rng.choices(names, weights, k=4 * TOLD))
        clients = {name: Bounds(rng.randrange(5, 500), rng.randrange(5)) for name in list(drawn)[:TOLD]}
        summaries.append(Summary(clients, 20_000, 5))
    rows = sum(len(each.clients) for each in summaries)
    cost = _median_s(lambda: merged(summaries))
    print(f"merge of {NODES} nodes x {INTERVALS} s, {rows:,} clients told of: {1_000 * cost:.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        home = EmbeddedHome(Path(folder) / "analytics.db")
        base_us = 1_750_000_000 // 86_400 * 86_400 * US_PER_S
        home.ingest(
            [_minute(base_us + minute * 60 * US_PER_S, summaries[minute % len(summaries)]) for minute in range(MINUTES)]
        )
        end_us = base_us + 86_400 * US_PER_S
        for window_s, until_us, what in (
            (900, end_us, "15 minutes"),
            (3_600, end_us - 420 * US_PER_S, "an hour"),
            (86_400, end_us, "24 whole hours"),
            (86_400 - 3_600, end_us - 420 * US_PER_S, "23 hours, beginning and ending within an hour"),
        ):
            question = OffendersQuestion(window_s * US_PER_S, until_us)
            cost = _median_s(lambda question=question: answer(home, question, end_us))  # type: ignore[misc]
            print(f"answer over {what}: {1_000 * cost:.0f} ms")
        home.close()


def _minute(at_us: int, summary: Summary) -> Batch:
    told = [
        SubjectCount(rule, name, "refused", *bounds) for rule in ("", "api") for name, bounds in summary.clients.items()
    ]
    return Batch(
        v=1, id=f"a/{at_us}", node="a", at_us=at_us, until_us=at_us + US_PER_S,
        requests=[RequestCount("api", "denied", "", 1, 20_000, 20_000)],
        rules=[RuleCount("api", "denied", "", 1, 20_000, 20_000)],
        subjects=told, totals=[SubjectTotal(rule, "refused", 20_000, 5) for rule in ("", "api")],
    )  # fmt: skip


def _median_s(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
