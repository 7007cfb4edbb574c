"""The event contract: what a node tells of its decisions. Schema version 1; docs/analytics/events.md describes it for readers outside.

A node tells of its decisions in batches, one for each interval of about a second. A batch is one JSON object. Three things hold:

- Exactly once, by ``Batch.id``: a batch is made once and resent unchanged; who keeps the ids it has seen counts nothing twice.
- Conservation: over all batches of a node the sum of ``requests[].decisions`` and of ``dropped.decisions`` is the number of decisions made, and
  that of ``tokens`` and ``dropped.tokens`` the sum of their costs. Peeks are no decisions. A process that is killed takes with it what it had
  not told.
- Compatibility: within version 1 fields are added and none is removed or changes its meaning. Readers ignore fields that they do not know.

Times are microseconds since 1970 UTC, on the node's clock unless said otherwise. "" is what has no name: no rule, no tier.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from sluicegate.errors import InvalidRequest

__all__ = [
    "ALLOWED",
    "ASK",
    "ASKED",
    "BYPASSED",
    "DENIED",
    "GIVEN_BACK",
    "NEVER_FITS",
    "REFUSED",
    "RESET",
    "SCHEMA_VERSION",
    "SHADOW_DENIED",
    "UNDECIDED",
    "UNMATCHED",
    "Admission",
    "Batch",
    "DecisionSample",
    "Demand",
    "Dropped",
    "RequestCount",
    "RuleCount",
    "SubjectCount",
    "SubjectTotal",
    "Watching",
    "batch_id",
    "decode",
    "encode",
    "size_estimate",
    "sum_dropped",
]

SCHEMA_VERSION: Final = 1

ALLOWED: Final = "allowed"
DENIED: Final = "denied"
"""Refused for now."""
NEVER_FITS: Final = "never_fits"
"""Refused for good: the cost is more than a counter holds, or a dimension is not known that must be."""
UNDECIDED: Final = "undecided"
"""Refused because the store could not be asked and the rule says so. Of a rule: it could not be decided, whatever became of the request."""
UNMATCHED: Final = "unmatched"
"""Allowed, because no rule applied."""
BYPASSED: Final = "bypassed"
"""Allowed, because the limiter was switched off."""
SHADOW_DENIED: Final = "shadow_denied"
"""Of a rule in shadow mode: it would have refused."""

REFUSED: Final = "refused"
"""A kind of heavy hitters: how often a rule refused the client, shadow rules included."""
ASKED: Final = "asked"
"""A kind of heavy hitters: how often the client asked."""

ASK: Final = "ask"
GIVEN_BACK: Final = "given_back"
"""Of an Admission: tokens were refunded or granted."""
RESET: Final = "reset"
"""Of an Admission: the counter was forgotten; with ``rule`` and ``subject`` "" any counter may have been changed by hand."""

_INT_MAX = 2**63 - 1
Count = Annotated[int, Meta(ge=0, le=_INT_MAX)]
Micros = Annotated[int, Meta(ge=0, le=_INT_MAX)]
Share = Annotated[float, Meta(gt=0, le=1)]


class RequestCount(Struct, frozen=True, omit_defaults=True):
    """Decisions of the interval that are alike. Every decision is in exactly one of these counts.

    ``rule``: the first enforced rule that refused, without the number of its part; ``block:ip`` (api_key, user, tenant) for a block list and
    ``allow:ip`` for an allow list; "" where allowed by rules, unmatched or bypassed. ``outcome``: ALLOWED, DENIED, NEVER_FITS, UNDECIDED, UNMATCHED
    or BYPASSED; readers must bear others. ``version``: of the rule set that decided, 0 for policies that callers bring along.
    ``tokens``: the sum of the costs asked, allowed or not: of the request, before rules multiply it. ``degraded``: decided without the store, or with less than all of it.
    """

    rule: str
    outcome: str
    tier: str
    version: Count
    decisions: Count
    tokens: Count
    degraded: bool = False


class RuleCount(Struct, frozen=True, omit_defaults=True):
    """What one rule did to the requests that it applied to; a request is counted once for each of its rules.

    ``rule``: without the number of a part. A rule of several parts counts as one: refused where one of them refuses. ``outcome``: the rule's own:
    ALLOWED, DENIED, NEVER_FITS, UNDECIDED or SHADOW_DENIED; ALLOWED also where another rule refused the request. ``tokens``: the costs asked of
    the rule, its multiplier included, whether or not they were charged.
    """

    rule: str
    outcome: str
    tier: str
    version: Count
    decisions: Count
    tokens: Count


class SubjectCount(Struct, frozen=True, omit_defaults=True):
    """A client that came often: a heavy hitter of the interval by Space-Saving.

    It came at most ``times`` and at least ``times - error`` times where ``sample_rate`` is 1. Below 1 only that share of requests was
    looked at; ``times`` and ``error`` are scaled up already and are estimates. ``kind``: REFUSED or ASKED. ``rule`` "": over all rules.
    ``subject``: a digest, or plain where the node is set to tell it so.
    """

    rule: str
    subject: str
    kind: str
    times: Count
    error: Count = 0
    sample_rate: Share = 1.0


class SubjectTotal(Struct, frozen=True, omit_defaults=True):
    """All events of one kind and rule in the interval, those of clients that are not told of included, scaled as ``SubjectCount``.

    ``untold``: a client that is not among ``subjects`` for this rule and kind came at most this often.
    """

    rule: str
    kind: str
    total: Count
    untold: Count = 0
    sample_rate: Share = 1.0


class DecisionSample(Struct, frozen=True, omit_defaults=True):
    """One decision as it was made. 1 / ``sample_rate`` decisions of its sort (refused or allowed) stand behind it.

    ``rule``, ``outcome``, ``tier``, ``version``, ``degraded``: as in RequestCount. ``rules``: all that applied. ``subjects``: by dimensions ("ip", or "api_key|endpoint" for
    a pair; "" for a counter of everybody): a digest or plain. ``endpoint``: route template, else the path without
    its query, "*" in the place of segments with a digit, an @ or more than 24 characters; "" where not known.
    ``cost``: asked. ``limit``, ``remaining``: tokens of the deciding rule's counter, None where there is none.
    ``retry_after_ms``: 0 where allowed; None where it can never pass.
    """

    at_us: Micros
    outcome: str
    sample_rate: Share
    rule: str = ""
    tier: str = ""
    version: Count = 0
    rules: tuple[str, ...] = ()
    subjects: dict[str, str] = {}
    method: str = ""
    endpoint: str = ""
    cost: Count = 1
    limit: Count | None = None
    remaining: Count | None = None
    retry_after_ms: Count | None = 0
    degraded: bool = False


class Demand(Struct, frozen=True, omit_defaults=True):
    """What one client asked of one rule during ``span_s`` seconds from ``at_us``, refused requests included.

    Clients are chosen by a digest that is the same on every node and from day to day: 1 / ``sample_rate`` clients stand behind this one, and all that a
    chosen client asked is told. ``asked``: requests; ``tokens``: their costs; ``refused``: requests that this rule refused, or would have in shadow
    mode. ``peak_1s``, ``peak_10s``: the most tokens asked in one and in ten consecutive seconds of the node's clock. Each node tells what it saw:
    sums add up over nodes, peaks do not.
    """

    rule: str
    tier: str
    subject: str
    at_us: Micros
    span_s: Annotated[int, Meta(ge=1)]
    asked: Count
    tokens: Count
    refused: Count
    peak_1s: Count
    peak_10s: Count
    sample_rate: Share = 1.0


class Admission(Struct, frozen=True, omit_defaults=True):
    """One ask of a watched counter, with all that is needed to judge it.

    ``rule``: with the number of its part (``api#2``), as each part has a counter. ``at_us``: on the clock of the store that decided, so that those of several
    nodes compare. ``cost``: asked of this counter. ``allowed``: the cost was charged, which is so where the whole request was admitted.
    ``fits``: this counter alone would have admitted it. ``capacity``: tokens of a full bucket or of a window. ``tokens`` per ``period_us``: the rate of a bucket, 0 per 0 for windows.
    ``window_us``: the window, or for a bucket the time a drained one takes to fill. ``degraded``: not the store decided. ``level``: see Watching.

    ``kind``: ASK; or what was done to the counter by other means, with ``at_us`` on the node's clock, before the store was told, and ``allowed`` False:
    GIVEN_BACK with at most ``cost`` tokens, or RESET, where ``cost`` is 0. Readers pass over kinds that they do not know.
    """

    rule: str
    subject: str
    algorithm: str
    capacity: Count
    tokens: Count
    period_us: Micros
    window_us: Micros
    at_us: Micros
    cost: Count
    allowed: bool
    fits: bool = True
    version: Count = 0
    shadow: bool = False
    degraded: bool = False
    level: Annotated[int, Meta(ge=0, le=32)] = 0
    kind: str = ASK


class Watching(Struct, frozen=True, omit_defaults=True):
    """Which counters were watched during the interval: those of an Admission ``level`` of at least ``level``; of those nothing is missing.

    A node that finds too much to tell watches half as many: its level rises by one, and it tells nothing of those below. A counter can be judged over a time
    in which every node's batches have a ``level`` at most that of its admissions.
    """

    level: Annotated[int, Meta(ge=0, le=33)] = 0


class Dropped(Struct, frozen=True, omit_defaults=True):
    """What could not be told since the batch before, by kind. Counts.

    ``batches``: whole intervals that were never delivered, with ``decisions`` and ``tokens`` that their RequestCounts had told of. ``samples``: decisions looked at and
    not told (their share is in the sample rates). ``subjects``: heavy hitters left out of batches. ``demand``: clients that were chosen and given up.
    ``admissions``: asks of counters that are watched no more.
    """

    batches: Count = 0
    decisions: Count = 0
    tokens: Count = 0
    samples: Count = 0
    subjects: Count = 0
    demand: Count = 0
    admissions: Count = 0


class Batch(Struct, frozen=True, omit_defaults=True):
    """What one node tells of one interval, ``at_us`` up to and without ``until_us``.

    ``id``: unique for ever, made once; the same id is the same batch, byte for byte. ``watch``: None where no counter is watched.
    """

    v: Annotated[int, Meta(ge=1)]
    id: Annotated[str, Meta(min_length=1, max_length=400)]
    node: Annotated[str, Meta(min_length=1, max_length=256)]
    at_us: Micros
    until_us: Micros
    requests: list[RequestCount] = []
    rules: list[RuleCount] = []
    subjects: list[SubjectCount] = []
    totals: list[SubjectTotal] = []
    decisions: list[DecisionSample] = []
    demand: list[Demand] = []
    admissions: list[Admission] = []
    watch: Watching | None = None
    dropped: Dropped = Dropped()

    @property
    def decided(self) -> int:
        """Decisions that this batch counts."""
        return sum(row.decisions for row in self.requests)

    @property
    def tokens(self) -> int:
        """Tokens that this batch counts."""
        return sum(row.tokens for row in self.requests)


class _Head(Struct):
    v: int


_encoder = msgspec.json.Encoder()
_batch_decoder = msgspec.json.Decoder(Batch)
_head_decoder = msgspec.json.Decoder(_Head)


def batch_id(node: str, incarnation: int, sequence: int) -> str:
    """The id of a batch. ``incarnation``: drawn at random by each process that tells (64 bits); ``sequence``: its batches from 0 on."""
    return f"{node}/{incarnation:016x}/{sequence}"


def encode(batch: Batch) -> bytes:
    """One JSON object without line breaks, UTF-8; fields that have their default are left out. What is no text in a name is told as "?"."""
    try:
        return _encoder.encode(batch)
    except UnicodeEncodeError:
        # A name that somebody made up may hold what is no text; it is told with question marks, so that nothing else is lost.
        return _encoder.encode(_written(msgspec.to_builtins(batch)))


def _written(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_written(key): _written(item) for key, item in value.items()}
    return [_written(item) for item in value] if isinstance(value, list | tuple) else value


def decode(data: bytes | bytearray | memoryview) -> Batch:
    """The batch in ``data``; fields that are not known are ignored.

    Raises InvalidRequest: of field "v" for another version, else of "batch" with the place of what is wrong.
    """
    try:
        version = _head_decoder.decode(data).v
        if version != SCHEMA_VERSION:
            raise InvalidRequest("v", f"this is schema version {version}; known is {SCHEMA_VERSION}")
        batch = _batch_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message, _, path = str(error).partition(" - at `$")
        field = ("batch" + path.rstrip("`")) if path else "batch"
        raise InvalidRequest(field, message or "is no JSON") from None
    if batch.until_us < batch.at_us:
        raise InvalidRequest("batch.until_us", f"must not be before at_us, got {batch.at_us} to {batch.until_us}")
    return batch


def size_estimate(batch: Batch) -> int:
    """About how many bytes ``encode`` makes of it, without doing so; within a factor of two for names of usual length."""
    counts = 110 * (len(batch.requests) + len(batch.rules))
    clients = 90 * (len(batch.subjects) + len(batch.totals)) + 180 * len(batch.demand)
    return 250 + counts + clients + 320 * len(batch.decisions) + 260 * len(batch.admissions)


def sum_dropped(one: Dropped, other: Dropped) -> Dropped:
    """Both together."""
    return Dropped(*(getattr(one, name) + getattr(other, name) for name in Dropped.__struct_fields__))
