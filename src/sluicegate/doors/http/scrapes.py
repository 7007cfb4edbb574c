"""``GET /metrics``: the format that the scraper prefers, of one process or of all that serve the same clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from sluicegate.doors.http.peers import Peers
from sluicegate.doors.http.respond import Reply
from sluicegate.doors.http.site import Answer, Route

__all__ = ["OPEN_METRICS", "Scrapes", "prefers_open_metrics"]

OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0"
"""Asks for OpenMetrics, as a value of ``Accept``."""

_NO_STORE: Final = "Cache-Control: no-store\r\nVary: Accept\r\n"
_VERSIONS: Final = {"application/openmetrics-text": "1.0.0", "text/plain": "0.0.4", "text/*": "0.0.4", "*/*": "0.0.4"}
_OPEN: Final = "application/openmetrics-text"

Own = Callable[[], tuple[str, bytes]]


class Scrapes:
    """The route. ``text`` and ``open_metrics`` give content type and exposition of this process; ``peers``: the others, if there are any."""

    def __init__(self, text: Own, open_metrics: Own | None, peers: Peers | None) -> None:
        self._peers = peers
        plain = self._route(text, "")
        opened = plain if open_metrics is None else self._route(open_metrics, OPEN_METRICS)
        self.route = replace(plain, by_accept=lambda accept: opened if prefers_open_metrics(accept) else plain)

    def _route(self, own: Own, accept: str) -> Route:
        if self._peers is None:
            return Route("/metrics", {"GET": lambda _body: _exposition(*own())}, guarded=False)
        return Route("/metrics", later={"GET": partial(self._of_all, own, accept)}, guarded=False)

    def _of_all(self, own: Own, accept: str, _body: bytes, answer: Answer) -> None:
        assert self._peers is not None, "the route is this one only where there are others"
        self._peers.scrape(own, lambda content_type, text: answer(_exposition(content_type, text)), accept=accept)


def prefers_open_metrics(accept: bytes) -> bool:
    """Whether this value of ``Accept`` (RFC 9110 section 12.5.1) wants OpenMetrics 1.0 at least as much as the text format 0.0.4.

    Who names no format gets the text format; so does who names only versions that are not spoken here, and who cannot be understood.
    """
    wanted = {"open": 0.0, "text": 0.0}
    for entry in accept.decode("latin-1").lower().split(","):
        kind, *rest = (part.strip() for part in entry.split(";"))
        parameters = {name.strip(): value.strip(' "') for name, _, value in (part.partition("=") for part in rest)}
        if parameters.get("version", version := _VERSIONS.get(kind, "")) != version or not version:
            continue
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            continue
        name = "open" if kind == _OPEN else "text"
        wanted[name] = max(wanted[name], quality)
    return wanted["open"] > 0 and wanted["open"] >= wanted["text"]


def _exposition(content_type: str, text: bytes) -> Reply:
    return 200, f"Content-Type: {content_type}\r\n{_NO_STORE}", text
