"""From what nodes told of chosen clients to who asked for how much, and when.

A row tells sums and peaks of a minute, not single requests. They are laid out as roughly as the peaks prove: the busiest second first, the
rest of the busiest ten seconds after it, and all else evenly over the tens of seconds behind. What is laid out has the sums and the peaks that were told. Limits over spans between these are judged by it, not by the truth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluicegate.bounds import SUGGESTION_CLIENTS_MAX, SUGGESTION_ROWS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.events import Demand

__all__ = ["Client", "arrivals_of", "busiest", "clients_of", "quantile"]

_LONG_S = 10


@dataclass(frozen=True, slots=True)
class Client:
    """One client. ``weight``: so many stand behind it. ``arrivals``: (time in microseconds, tokens), by time.

    ``minutes``: the rows it was told in, as (at_us, span_s, tokens, peak_1s, peak_10s).
    """

    subject: str
    weight: float
    asked: int
    tokens: int
    refused: int
    arrivals: tuple[tuple[int, int], ...]
    minutes: tuple[tuple[int, int, int, int, int], ...]


def clients_of(rows: Iterable[Demand]) -> tuple[list[Client], int]:
    """The clients of one rule by their names, and how many were left out beyond the bounds.

    Subjects are digests, so that those that are left out, the last by name, are no certain sort of clients.
    """
    by_subject: dict[str, list[Demand]] = defaultdict(list)
    for row in rows:
        if row.asked:
            by_subject[row.subject].append(row)
    clients: list[Client] = []
    left = SUGGESTION_ROWS_MAX
    for subject in sorted(by_subject):
        told = by_subject[subject]
        left -= len(told)
        if len(clients) >= SUGGESTION_CLIENTS_MAX or (left < 0 and clients):
            break
        clients.append(_client(subject, told))
    return clients, len(by_subject) - len(clients)


def _client(subject: str, told: list[Demand]) -> Client:
    told.sort(key=lambda row: (row.at_us, row.span_s, row.tokens, row.peak_1s, row.peak_10s))
    arrivals = sorted(arrival for row in told for arrival in arrivals_of(row))
    return Client(
        subject=subject,
        # Who was told of at a larger share of all may not have been chosen at a smaller one.
        weight=1 / max(row.sample_rate for row in told),
        asked=sum(row.asked for row in told),
        tokens=sum(max(row.tokens, row.asked) for row in told),
        refused=sum(row.refused for row in told),
        arrivals=tuple(arrivals),
        minutes=tuple((row.at_us, row.span_s, max(row.tokens, row.asked), row.peak_1s, row.peak_10s) for row in told),
    )


def arrivals_of(row: Demand) -> list[tuple[int, int]]:
    """One row laid out: times in microseconds and the tokens asked then; together the row's.

    Every ten seconds begin as the busiest do, so that no ten seconds across two of them hold more than those.
    """
    tokens = max(row.tokens, row.asked)
    seconds = max(1, row.span_s)
    short = tokens if seconds == 1 else min(max(row.peak_1s, -(-tokens // seconds)), tokens)
    long = tokens if seconds <= _LONG_S else min(max(row.peak_10s, short, -(-tokens * _LONG_S // seconds)), tokens)
    pattern = [(0, short), *_spread(long - short, min(_LONG_S, seconds), short)]
    laid = list(pattern)
    blocks = max(1, -(-(seconds - _LONG_S) // _LONG_S))
    rest = tokens - long
    for block in range(blocks if rest else 0):
        left = (block + 1) * rest // blocks - block * rest // blocks
        for second, most in pattern:
            share = min(most, left)
            laid.append((min((block + 1) * _LONG_S + second, seconds - 1), share))
            left -= share
    return [(row.at_us + second * US_PER_S, share) for second, share in laid if share]


def _spread(tokens: int, seconds: int, most: int) -> list[tuple[int, int]]:
    """Tokens over the seconds after the first, in three pieces, or in more where one of them had more than ``most``."""
    room = seconds - 1
    if tokens <= 0 or room <= 0:
        return []
    count = min(room, 3 if tokens <= 3 * most else room, tokens)
    return [
        (1 + place * room // count, (place + 1) * tokens // count - place * tokens // count) for place in range(count)
    ]


def busiest(client: Client, window_us: int) -> int:
    """The most tokens that a client asked in a window of this length, as far as it was told.

    For whole minutes and more by aligned windows. Below a minute a bound: what the peaks allow.
    """
    window_s = window_us / US_PER_S
    if window_s <= 1:
        return max(min(tokens, peak_1s or tokens) for _, _, tokens, peak_1s, _ in client.minutes)
    if window_s < 60:
        return max(_within(window_s, *minute[2:]) for minute in client.minutes)
    sums: dict[int, int] = defaultdict(int)
    for at_us, tokens in client.arrivals:
        sums[at_us // window_us] += tokens
    return max(sums.values())


def _within(window_s: float, tokens: int, peak_1s: int, peak_10s: int) -> int:
    if window_s <= _LONG_S:
        return min(tokens, peak_10s or tokens, -int(-window_s // 1) * (peak_1s or tokens))
    return min(tokens, -int(-window_s // _LONG_S) * (peak_10s or tokens))


def quantile(values: Sequence[tuple[int, float]], share: float) -> int:
    """The smallest value that at least ``share`` of the weight is at or below. ``values``: (value, weight); 0 where there are none."""
    ordered = sorted(values)
    bound = share * sum(weight for _, weight in ordered)
    passed = 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= bound * (1 - 1e-12):
            return value
    return ordered[-1][0] if ordered else 0
