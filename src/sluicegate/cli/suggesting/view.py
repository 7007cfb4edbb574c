"""Proposals as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from sluicegate.algorithms import TokenBucket
from sluicegate.analytics.suggestions import percent, span
from sluicegate.cli.remote.render import table, told
from sluicegate.rules.proposals import Evidence, Refusals, Suggestion
from sluicegate.rules.quota_format import format_quota, format_span

__all__ = ["show"]

_HEADINGS = ("RULE", "TIER", "NOW", "PROPOSED", "VERDICT", "CLIENTS REFUSED", "REQUESTS REFUSED", "CONFIDENCE")


def show(made: Sequence[Suggestion], *, explain: bool) -> None:
    """A table, and for each proposal why, in plain words."""
    table(_HEADINGS, map(_row, made), "there is no rule")
    for each in made:
        click.echo(f"\n{told(_name(each))}: {told(each.why)}")
        moved = each.verdict in ("raise", "lower")
        # Whose the refusals are matters at once, whether or not a number is proposed.
        for caution in each.cautions if moved or explain or each.evidence.refused_clients else ():
            click.echo(f"  - {told(caution)}")
        if explain:
            for line in _evidence(each):
                click.echo(f"    {told(line)}")
        elif moved:
            click.echo(f"    suggestion {each.id}")


def _name(each: Suggestion) -> str:
    return f"{each.rule}, {each.tier}" if each.tier else each.rule


def _row(each: Suggestion) -> tuple[str, ...]:
    moved = each.verdict in ("raise", "lower")
    now, then = each.evidence.now, each.evidence.proposed if moved else None
    shares = (_change(now, then, "clients"), _change(now, then, "requests"))
    proposed = each.proposed if moved else "-"
    return (each.rule, each.tier or "-", each.current, proposed, each.verdict, *shares, each.confidence)


def _change(now: Refusals | None, then: Refusals | None, field: str) -> str:
    if now is None:
        return "-"
    before = percent(getattr(now, field))
    return before if then is None else f"{before} -> {percent(getattr(then, field))}"


def _evidence(each: Suggestion) -> Iterator[str]:
    """The numbers behind a proposal."""
    evidence = each.evidence
    yield f"suggestion {each.id}"
    if not evidence.clients:
        if evidence.matched:
            yield f"applied to {evidence.matched:,} requests, refused {evidence.refused:,}"
        return
    yield (
        f"{evidence.clients:,} clients with {evidence.requests:,} requests in {span(evidence.span_s)}"
        + (f", standing for {evidence.clients_estimated:,} and {evidence.requests_estimated:,}" if evidence.sample_rate_min < 1 else "")
        + f"; counted without sampling: {evidence.matched:,} requests, {evidence.refused:,} refused"
    )  # fmt: skip
    demand = evidence.demand
    if demand is not None:
        window = format_span(round(demand.window_s * 1_000_000))
        yield (
            f"asked in the busiest {window}: half of the clients at most {demand.p50}, 90 % {demand.p90}, 99 % {demand.p99}, "
            f"99.9 % {demand.p999}, the busiest {demand.max}"
        )
    yield from _refusals(evidence)
    if evidence.refused_clients:
        yield (
            f"refusals are of {evidence.refused_clients:,} clients: half of them of {evidence.half_of_refusals:,}, "
            f"{percent(evidence.top_client)} of the one with the most"
        )
    if evidence.excluded:
        yield f"left out: {evidence.excluded:,} clients with {percent(evidence.excluded_requests)} of the requests"
    if evidence.buckets:
        yield "capacity is what a client may take at once, the rate what it may go on with; these serve the same clients, headroom included:"
        for bucket in evidence.buckets:
            text = format_quota((TokenBucket(bucket.capacity, bucket.tokens, bucket.period_us),))
            yield f"  {text}{'   <- proposed' if text == each.proposed and text != each.current else ''}"


def _refusals(evidence: Evidence) -> Iterator[str]:
    for name, shares in (
        ("were refused", evidence.seen),
        ("now, replayed", evidence.now),
        ("proposed", evidence.proposed),
    ):
        if shares is not None:
            sure = (
                ""
                if shares.low == shares.high
                else f" ({percent(shares.low)} to {percent(shares.high)} with 95 % confidence)"
            )
            yield f"{name}: {percent(shares.clients)} of the clients{sure}, {percent(shares.requests)} of the requests"
