"""What lists of a million addresses cost a request, and what an edit of them costs.

Each figure is the best of several runs, in microseconds of processor time of one call. The requests come from addresses that are on no list, half of the
list's addresses have an end and half have none, and a hundred networks of ten lengths are on it, too. The check is of two rules on the
memory store. Memory is what the interpreter says it has handed out for the lists.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from time import process_time
from timeit import repeat as repeat_by

from _report import Figure, tell

from sluicegate.clock import ManualClock, SystemClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.lists import Lists
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry
from sluicegate.rules.load import load_rules

ENTRIES = 1_000_000
FAR_US = 1 << 51
EDIT_US_MAX = 5_000.0

RULES = """version: 1
rules:
  - {name: floor, quota: 1000000000/second}
  - {name: api, per: {first_of: [api_key, user, ip]}, quota: 100000000/second}
"""
ASKING = [Facts(method="GET", path="/", ip=f"10.0.{n >> 8}.{n & 255}", user=f"u{n}") for n in range(1_000)]


def repeat(call: Callable[[], object], *, number: int, repeat: int) -> list[float]:
    """Seconds of processor time of several runs."""
    return repeat_by(call, number=number, repeat=repeat, timer=process_time)


def feed() -> Iterator[ListEntry]:
    """A million different addresses outside 10.0.0.0/8, and networks of ten lengths."""
    random = Random(7)
    numbers: set[int] = set()
    while len(numbers) < ENTRIES:
        number = random.getrandbits(32)
        if number >> 24 != 10:
            numbers.add(number)
    for number in numbers:
        text = ".".join(str(byte) for byte in number.to_bytes(4))
        yield ListEntry("block", "ip", text, FAR_US if number & 1 else None, "feed")
    for number in range(100):
        bits = 19 + number % 10
        yield ListEntry("block", "ip", f"198.{number}.0.0/{bits}", None, "nets")


def per_call_us(call: Callable[[Facts], object]) -> float:
    """One call with a request of somebody who is on no list."""

    def run() -> None:
        for facts in ASKING:
            call(facts)

    return min(repeat(run, number=5, repeat=15)) / 5 / len(ASKING) * 1e6


def edit_us(lists: Lists) -> float:
    """The slowest of a thousand edits: put an address, take it off."""
    slowest = 0.0
    for number in range(500):
        entry = ListEntry("block", "ip", f"10.9.{number >> 8}.{number & 255}")
        slowest = max(slowest, *(min(repeat(edit, number=1, repeat=1)) for edit in _edits(lists, entry)))
    return slowest * 1e6


def _edits(lists: Lists, entry: ListEntry) -> tuple[Callable[[], object], Callable[[], object]]:
    return lambda: lists.put(entry), lambda: lists.remove(entry.key)


def main() -> int:
    """Print the figures; 1 where a goal is missed."""
    limiter = Limiter.from_rules(load_rules(RULES, "bench.yaml"), clock=SystemClock())
    empty = per_call_us(limiter.check)
    entries = list(feed())
    tracemalloc.start()
    measured = Lists(ManualClock())
    measured.replace(entries)
    size = tracemalloc.get_traced_memory()[0] / len(entries)
    tracemalloc.stop()
    del measured
    load = min(repeat(lambda: limiter.lists.replace(entries), number=1, repeat=3)) / len(entries) * 1e6
    lookup = per_call_us(limiter.lists.find)
    loaded = per_call_us(limiter.check)
    blocked = entries[:1_000]
    refused = min(
        repeat(lambda: [limiter.check(Facts(ip=entry.value)) for entry in blocked], number=1, repeat=9)
    ) / len(blocked)
    figures = [
        Figure("lists: bytes of one address of a million", size, "bytes", size, size, 100, at_most=True),
        Figure("lists: loading a million, each", load, "us", load, load),
        Figure("lists: an edit beside a million, the slowest of 1,000", (edit := edit_us(limiter.lists)), "us", edit, edit,
               EDIT_US_MAX, at_most=True),
        Figure("lists: a lookup in a million and 11 lengths of prefix", lookup, "us", lookup, lookup),
        Figure("check of two rules, lists empty", empty, "us", empty, empty),
        Figure("check of two rules, a million on the lists", loaded, "us", loaded, loaded),
        Figure("check of a client on the block list", refused * 1e6, "us", refused * 1e6, refused * 1e6),
    ]  # fmt: skip
    for figure in figures:
        print("{:<60}{:>16}".format(*figure.cells()[:2]))
    tell(figures)
    return int(any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
