"""Who comes most, as people and programs ask for it and are told: over HTTP, and of a data directory without a service."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from sluicegate.bounds import TOP_ROWS_MAX, TOP_WINDOW_S_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import InvalidRequest
from sluicegate.events import Dropped
from sluicegate.rules.notation import NotationError, parse_span

__all__ = ["OVERALL", "OffenderRow", "OffenderRule", "OffendersAnswer", "OffendersQuestion", "parse_window"]

OVERALL: Final = "*"
"""Instead of a rule: clients counted over all rules."""

_KINDS = ("refused", "asked")


class OffendersQuestion(Struct, frozen=True):
    """What is asked. Raises InvalidRequest, which names the field.

    ``window_us`` before ``until_us``; None: before now. ``rule``: of that rule; ``*``: over all rules; "": of each rule. ``subject``: only this
    client, as a digest or as itself; "": all. ``limit``: rows, 1 to ``TOP_ROWS_MAX``.
    """

    window_us: int = 15 * 60 * US_PER_S
    until_us: int | None = None
    rule: str = ""
    kind: Literal["refused", "asked"] = "refused"
    subject: str = ""
    limit: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.window_us <= TOP_WINDOW_S_MAX * US_PER_S:
            raise InvalidRequest("window", f"must be above 0 and at most {TOP_WINDOW_S_MAX // 86_400} days")
        if self.until_us is not None and not 0 <= self.until_us < 2**53:
            raise InvalidRequest("until", f"must be microseconds since 1970, got {self.until_us}")
        if self.kind not in _KINDS:
            raise InvalidRequest("kind", f"must be refused or asked, got {self.kind!r:.64}")
        if not 1 <= self.limit <= TOP_ROWS_MAX:
            raise InvalidRequest("limit", f"must be 1 to {TOP_ROWS_MAX}, got {self.limit}")


class OffenderRow(Struct, frozen=True):
    """A client: it came at most ``times`` and at least ``times - error`` times in the window.

    ``rule`` "": over all rules. ``share``: of all events of the kind, 0 to 1; None where those are not known. ``per_s``: now; None where the client is not
    among those counted now.
    """

    rule: str
    subject: str
    times: int
    error: int
    share: float | None
    per_s: float | None


class OffenderRule(Struct, frozen=True):
    """What a rule, or a list such as ``block:ip``, did to the requests of the window that it applied to. ``undecided``: the store could not be asked."""

    rule: str
    allowed: int
    refused: int
    shadow_refused: int
    undecided: int


class OffendersAnswer(Struct, frozen=True):
    """Who came most in the window from ``since_us`` until ``until_us``; ``now_us``: when it was asked.

    ``total``: all events of the kind; None where not known. ``error``: a client that is not known came at most this often.
    ``more``: clients are known that are not among ``rows``. ``sample_rate``: below 1 numbers of clients are estimates.
    ``requests``, ``allowed``, ``refused``: decisions of the window; ``per_s``: decisions now; ``dropped``: decisions and clients that nodes could not
    tell of. ``newest_us``: what was told last of all; None: nothing yet.
    """

    kind: Literal["refused", "asked"]
    rule: str
    now_us: int
    since_us: int
    until_us: int
    rows: list[OffenderRow]
    total: int | None
    error: int
    more: bool
    sample_rate: float
    requests: int
    allowed: int
    refused: int
    per_s: float
    rules: list[OffenderRule]
    nodes: list[str]
    dropped: Dropped
    newest_us: int | None


def parse_window(text: str) -> int:
    """A window such as ``15m``, ``24h`` or ``3 days``, in microseconds. Raises InvalidRequest of "window"."""
    try:
        return parse_span(text)
    except NotationError as error:
        raise InvalidRequest("window", str(error)) from None
