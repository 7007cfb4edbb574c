"""The table of docs/doors.md: tests ask doors and make its rows from the answers, which are compared with the page.

``SLUICEGATE_WRITE_PAGES=1`` writes the rows into the page instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "doors.md"
BEGIN, END = "<!-- rows from answers: begin -->\n", "<!-- rows from answers: end -->\n"
HEAD = (
    "| door | passes | refused | body of a refusal | store away, rule `closed` | store away, rule `local` | store away, rule `open` |\n"
    "|---|---|---|---|---|---|---|\n"
)
DOORS = {
    "HTTP `/v1/check`": "http-api.md#check-one-request",
    "HTTP `/json`": "migrate/envoy-ratelimit.md",
    "HTTP `/authz/envoy`": "envoy.md",
    "HTTP `/authz/nginx`": "nginx.md#auth_request",
    "HTTP `/authz/forward`": "proxies.md",
    "gRPC rate limit service": "grpc.md",
    "gateway": "gateway.md",
    "nginx, Lua": "nginx.md#lua-inside-nginx",
    "nginx, `auth_request`": "nginx.md#auth_request",
    "ASGI middleware": "python/asgi.md",
    "WSGI middleware": "python/wsgi.md",
    "Flask extension": "python/flask.md",
    "Django middleware": "python/django.md",
    "Django `@ratelimit`": "python/django.md",
    "REST framework throttle": "python/django.md#django-rest-framework",
    "FastAPI dependency": "python/fastapi.md",
}
"""Every door, in the order of the page, and where it is described."""
RATE_FIELDS = {f"x-ratelimit-{name}" for name in ("limit", "remaining", "reset", "policy")}


@dataclass(frozen=True)
class Said:
    """An answer: its status by number or name, its fields with lower-case names, its body."""

    status: str
    fields: Mapping[str, str]
    body: bytes

    @property
    def told(self) -> str:
        """Status and fields, in short."""
        found = ["rate fields"] if self.fields.keys() >= RATE_FIELDS else []
        assert found or not self.fields.keys() & RATE_FIELDS, "all of them or none"
        found += ["`Retry-After`"] if "retry-after" in self.fields else []
        true_status = self.fields.get("x-sluicegate-status")
        found += [f"`X-Sluicegate-Status: {true_status}`"] if true_status else []
        return f"{self.status}: {', '.join(found) or 'no fields'}"

    @property
    def kind(self) -> str:
        """The media type of the body."""
        return f"`{self.fields['content-type'].partition(';')[0]}`" if self.body else "none"


class DoorsPage:
    """``add`` answers door by door; ``compare`` at the end."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def add(self, door: str, closed: Sequence[Said], local: Sequence[Said], opened: Sequence[Said]) -> None:
        """A limit of one under a closed rule was asked twice and once without the store; the others twice without it."""
        passed, refused, outage = closed
        first, second = (said.status for said in local)
        cells = (
            f"[{door}]({DOORS[door]})",
            passed.told,
            refused.told,
            refused.kind,
            f"{outage.told}; {outage.kind}" if outage.body else outage.told,
            f"{first}, then {second}",
            ", then ".join(dict.fromkeys(said.told for said in opened)),
        )
        self.rows[door] = f"| {' | '.join(cells)} |\n"

    def compare(self) -> None:
        """Fails where a row is not the one on the page, or the page has a door that is not known."""
        before, rest = PAGE.read_text().split(BEGIN)
        table, after = rest.split(END)
        shown = {
            found[1]: line for line in table.splitlines(keepends=True) if (found := re.match(r"\| \[(.*?)\]\(", line))
        }
        if os.environ.get("SLUICEGATE_WRITE_PAGES", "") not in ("", "0"):
            shown |= self.rows
            table = HEAD + "".join(shown[door] for door in DOORS if door in shown)
            PAGE.write_text(before + BEGIN + table + END + after)
            return
        assert {door: shown.get(door) for door in self.rows} == self.rows
        assert table == HEAD + "".join(shown[door] for door in DOORS), "every door has its row"


@pytest.fixture
def doors_page() -> DoorsPage:
    """The page, without a row yet."""
    return DoorsPage()


@pytest.fixture
def said() -> type[Said]:
    """Makes an answer for ``doors_page``."""
    return Said
