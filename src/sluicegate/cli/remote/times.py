"""How people write times, spans and shares on the command line; strictly, because a date that is read otherwise than meant costs money."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import click

from sluicegate.clock import US_PER_S
from sluicegate.rules.notation import NotationError, parse_span

__all__ = ["End", "EndOrNeverType", "EndType", "ShareType", "StepType"]

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:\d\d))?", re.ASCII)
_LETTER: Final = re.compile(r"\d{4}-", re.ASCII)
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,2})?)%", re.ASCII)


@dataclass(frozen=True, slots=True)
class End:
    """When something ends: at a time, or a span from when the service hears of it. One of both is set; neither: never."""

    at_us: int | None = None
    after_us: int | None = None

    def fields(self, at_name: str, after_name: str) -> dict[str, Any]:
        """As the field of a request."""
        return {at_name: self.at_us} if self.after_us is None else {after_name: self.after_us / US_PER_S}

    def moment_us(self, now_us: int) -> int | None:
        """The time, for what takes no span."""
        return self.at_us if self.after_us is None else now_us + self.after_us


class EndType(click.ParamType):  # type: ignore[type-arg]  # not generic in all releases we accept
    """A span such as ``15m`` or ``3 days``, or a time by ISO 8601 with its zone; a date alone is its first moment in UTC."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> End:
        if isinstance(value, End):
            return value
        text = str(value).strip()
        if _LETTER.match(text):
            return End(at_us=self._moment_us(text, param, ctx))
        try:
            return End(after_us=parse_span(text))
        except NotationError as error:
            self.fail(
                f"{error}; nor is it a time such as 2026-12-04T18:00:00Z or a date such as 2026-12-04", param, ctx
            )

    def _moment_us(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if _MOMENT.fullmatch(text) is None:
            self.fail(
                f"{text!r} is no time with its zone, such as 2026-12-04T18:00:00Z or 2026-12-04T18:00+01:00, and no date such as 2026-12-04",
                param,
                ctx,
            )
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            self.fail(f"{text!r}: {error}", param, ctx)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp()) * US_PER_S


class EndOrNeverType(EndType):
    """An end, or ``never``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> End:
        return End() if value == "never" else super().convert(value, param, ctx)


class ShareType(click.ParamType):  # type: ignore[type-arg]  # not generic in all releases we accept
    """A share such as ``1%`` or ``0.25%``, as basis points."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SHARE.fullmatch(str(value).strip())
        points = None if found is None else int(Decimal(found[1]) * 100)
        if points is None or points > 10_000:
            self.fail(f"{value!r} is no share such as 1%, 12.5% or 100%", param, ctx)
        return points


class StepType(click.ParamType):  # type: ignore[type-arg]  # not generic in all releases we accept
    """A step of a schedule, ``SHARE@SPAN``: ``10%@15m`` goes to 10 % fifteen minutes after the step before it."""

    name = "step"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        share, at, span = str(value).partition("@")
        if not at:
            self.fail(f"{value!r} is no step such as 10%@15m", param, ctx)
        points = ShareType().convert(share, param, ctx)
        try:
            after_us = parse_span(span)
        except NotationError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        return {"basis_points": points, "after_s": after_us // US_PER_S}
