"""Proposals in plain words: what was seen, what follows, and what it does not show."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sluicegate.algorithms import Ban, FixedWindow
from sluicegate.algorithms.spec import Spec
from sluicegate.analytics.suggestions.model import Exact, Judged, Limits, Policy
from sluicegate.analytics.suggestions.numbers import is_burst
from sluicegate.rules.proposals import Confidence, Evidence, Suggestion
from sluicegate.rules.quota_format import format_quota, format_span

__all__ = ["Confidence", "cautions", "missing", "percent", "span", "told"]

_DAY_S = 86_400
_FEW_REFUSERS = 3


def percent(share: float) -> str:
    """A share of 1 as people read it: never 0 % for what is not nothing, nor 100 % for what is not all."""
    if share <= 0:
        return "0 %"
    if share >= 1:
        return "100 %"
    if share < 0.0001:
        return "under 0.01 %"
    if share > 0.9999:
        return "over 99.99 %"
    text = f"{100 * share:.3g}" if share < 0.99 else f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{text} %"


def span(seconds: int) -> str:
    """A length of time, to the unit that matters."""
    for unit, length in (("days", _DAY_S), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds} seconds"


def missing(limits: Limits, evidence: Evidence, policy: Policy, *, needed_s: int) -> tuple[str, ...]:
    """What there is too little of for any proposal. "Every" client is one that was sampled."""
    if limits.shared or not limits.specs:
        return ()
    found = []
    if not evidence.clients:
        return ("no demand was recorded for this rule and tier (nodes tell of it once a minute)",)
    if evidence.clients < policy.clients_min:
        found.append(f"{evidence.clients} of {policy.clients_min} clients")
    if evidence.requests < policy.requests_min:
        found.append(f"{evidence.requests} of {policy.requests_min} requests")
    if evidence.span_s < needed_s:
        found.append(f"{span(evidence.span_s)} of {span(needed_s)}")
    return tuple(found)


def cautions(
    limits: Limits,
    evidence: Evidence,
    judged: Judged,
    policy: Policy,
    *,
    excluded_many: bool,
    left_out: int,
    exact: Exact | None,
) -> tuple[str, ...]:
    """What somebody should know before believing a proposal, the weightiest first."""
    said: list[str] = []
    if judged.held:
        said.append(f"Its minimum is {limits.minimum_text}: traffic alone would do with less.")
    if judged.capped:
        said.append(
            f"One step goes no further than times {policy.step_max:g}, which leaves too little headroom, or none. Look again when this has been in service for a while."
        )
    said += _of_clients(evidence, policy, excluded_many=excluded_many)
    said += _of_rule(limits, judged)
    said += _of_data(limits, evidence, left_out=left_out, exact=exact)
    return tuple(said)


def _of_clients(evidence: Evidence, policy: Policy, *, excluded_many: bool) -> list[str]:
    said = []
    if evidence.excluded:
        said.append(
            f"{_clients(evidence.excluded)} with {percent(evidence.excluded_requests)} of the requests left out: each asked more than "
            f"{policy.outlier_factor:g} times what 95 % of the clients stay below, and raises no limit. Look at them (`sluicegate top`)."
        )
    if excluded_many:
        said.append(
            f"More than {percent(policy.outlier_share_max)} of the clients ask far more than the others. If they are customers, give them a tier of their own; if not, block them."
        )
    if evidence.refused_clients and evidence.half_of_refusals <= _FEW_REFUSERS and evidence.clients > 10:
        said.append(
            f"Half of all refusals are of {_clients(evidence.half_of_refusals)}, so refusals here tell of few, not of a limit that is too low for many."
        )
    if (
        evidence.seen is not None
        and evidence.now is not None
        and evidence.now.clients > max(2 * evidence.seen.clients, 1 - policy.target_share)
    ):
        said.append(
            f"{_few(evidence.seen.clients)} really refused by this rule, {percent(evidence.now.clients)} of the clients when replayed: another rule refused first, the "
            "numbers were larger then, or requests came more evenly than the recorded peaks show. What was not refused raises no limit."
        )
    if evidence.seen is not None and evidence.seen.requests > 0.2:
        said.append(
            f"{percent(evidence.seen.requests)} of the requests were refused. Refused clients ask again or give up, so what they would have asked is not known well."
        )
    return said


def _of_rule(limits: Limits, judged: Judged) -> list[str]:
    said = []
    if limits.mode == "shadow":
        said.append("The rule is in shadow mode: it refuses nobody yet, so nobody has adapted to it.")
    if limits.penalty:
        said.append(
            "The rule blocks clients after some refusals; a lower limit blocks more of them. What blocked clients would have asked is not known."
        )
    if limits.denied_counts:
        said.append("Refused requests count too (denied_counts), so a client that goes on asking stays refused longer.")
    if any(isinstance(spec, FixedWindow) and spec.unit is not None for spec in limits.specs):
        said.append("Its windows follow the calendar; this looks at whole spans of the same length.")
    if limits.minimum is not None and len(limits.specs) != 1:
        said.append(
            f"The minimum {limits.minimum_text} is of one limit and the quota has {len(limits.specs)}: it was not applied, nothing is lowered."
        )
    if len(judged.specs) > 1:
        said.append(
            "Each part of the quota was judged by itself; a client that is held by one part shows less at the others."
        )
    return said


def _of_data(limits: Limits, evidence: Evidence, *, left_out: int, exact: Exact | None) -> list[str]:
    said = []
    if evidence.clients and not limits.shared:
        if evidence.span_s < 7 * _DAY_S:
            said.append(
                f"{span(evidence.span_s).capitalize()} show no week: days and hours that are busier may not be among them."
            )
        if evidence.sample_rate_min < 1:
            low = percent(evidence.sample_rate_min)
            many = (
                low
                if evidence.sample_rate_min == evidence.sample_rate_max
                else f"{low} to {percent(evidence.sample_rate_max)}"
            )
            said.append(
                f"{many} of the clients were looked at; the shares of clients are told with what chance makes of them."
            )
    if left_out:
        said.append(f"{_clients(left_out)} more were sampled and not looked at: the span is too long for all of them.")
    if exact is not None and len(exact.versions) > 1:
        said.append(
            f"The rules changed within the span ({len(exact.versions)} versions); refusals that were seen are of all of them."
        )
    return said


def told(made: Suggestion, name: str, limits: Limits, judged: Judged, policy: Policy) -> Suggestion:
    """The proposal with its name and its reason."""
    return replace(made, id=name, why=_why(made, limits, judged, policy))


def _why(made: Suggestion, limits: Limits, judged: Judged, policy: Policy) -> str:
    evidence = made.evidence
    if limits.shared:
        return "All clients share this counter. It protects what is behind it, and traffic does not tell how much that can bear."
    if not limits.specs:
        if evidence.demand is None:
            return "No limit, and no demand was recorded."
        return f"No limit. In their busiest minute 99 % of the clients asked at most {evidence.demand.p99}, the busiest {evidence.demand.max}."
    if all(isinstance(spec, Ban) for spec in limits.specs):
        return "A ban is a decision, which traffic cannot judge."
    if made.missing:
        return f"There is not enough to go by: {', '.join(made.missing)}."
    assert evidence.now is not None
    assert evidence.proposed is not None
    target = percent(policy.target_share)
    which = "the other clients" if evidence.excluded else "the clients"
    now = f"{made.current} refuses {percent(evidence.now.clients)} of {which} and {percent(evidence.now.requests)} of their requests"
    then = (
        f"{made.proposed} would refuse {percent(evidence.proposed.clients)} and {percent(evidence.proposed.requests)}"
    )
    if made.verdict == "keep":
        return f"{now[0].upper()}{now[1:]}. {_kept(made, policy)}"
    needs = _needs(limits, judged, policy)
    if made.verdict == "raise":
        return f"{now[0].upper()}{now[1:]}; {then}. {needs}"
    return f"{target} of the clients need less: {then}. {needs}"


def _kept(made: Suggestion, policy: Policy) -> str:
    assert made.evidence.now is not None
    if (
        made.evidence.seen is not None
        and made.evidence.now.clients > 1 - policy.target_share >= made.evidence.seen.clients
    ):
        return f"But {_few(made.evidence.seen.clients).lower()} really refused, so nothing is raised."
    if made.evidence.now.clients > 1 - policy.target_share:
        return (
            f"That is more than {percent(1 - policy.target_share)}, and no larger limit is within reach of a proposal."
        )
    needed, span_s = made.evidence.needed, made.evidence.span_s
    if span_s < policy.lower_span_s:
        return f"That is few enough; whether less would do is judged after {span(policy.lower_span_s)} only."
    return f"That is few enough, and {percent(policy.target_share)} need too much of it ({', '.join(map(str, needed))}) to lower it."


def _needs(limits: Limits, judged: Judged, policy: Policy) -> str:
    """What the wanted share of the clients needs."""
    texts = []
    for old, new, needed in zip(limits.specs, judged.specs, judged.needed, strict=True):
        if is_burst(old):
            texts.append(f"a capacity of {needed} at the rate of now")
        elif needed > int(old.capacity * policy.step_max):
            texts.append(f"more than {format_quota((new,))}")
        elif needed <= int(-(-old.capacity // policy.step_max) / policy.headroom):
            texts.append(f"at most {needed} per {_per(old)}")
        else:
            texts.append(f"{needed} per {_per(old)}")
    wish = f"{policy.headroom:g} times that"
    if judged.capped:
        return f"{percent(policy.target_share)} of the clients need {' and '.join(texts)}; {wish} would be proposed, but one step goes no further."
    return f"{percent(policy.target_share)} of the clients need {' and '.join(texts)}; {wish} is proposed, rounded."


def _per(spec: Spec) -> str:
    return format_span(spec.window_us)


def _few(share: float) -> str:
    return f"Only {percent(share)} of the clients were" if share else "No client was"


def _clients(count: int | Sequence[object]) -> str:
    number = count if isinstance(count, int) else len(count)
    return "1 client" if number == 1 else f"{number} clients"
