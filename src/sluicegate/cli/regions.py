"""The flags of a server in one of several regions that share their quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, TypeVar

import click

from sluicegate.app.regions import RegionSettings
from sluicegate.cli.options import option
from sluicegate.errors import ConfigurationError
from sluicegate.stores.regional.plan import EACH, SHARE, Plan

__all__ = ["plan_of", "region_options", "regions_of"]

Function = TypeVar("Function", bound=Callable[..., Any])

_PLACES_MAX: Final = 6
_TOGETHER: Final = "--region and --regions belong together: where this server is, and which regions there are"


def region_options() -> tuple[Callable[[Function], Function], ...]:
    """All of them."""
    return (
        option(
            "region",
            metavar="NAME",
            help="The region this server is in, one of --regions. Its --store serves this region alone.",
        ),
        option(
            "regions",
            metavar="NAME=WEIGHT,...",
            help="The regions that share every quota, and their weights; the same everywhere. Without it there are no regions.",
        ),
        option(
            "regions-before", metavar="NAME=WEIGHT,...", help="The weights before a change, while it is rolled out."
        ),
        option("regions-version", type=int, default=1, help="Number of the table of regions, higher with each change."),
        option(
            "region-store",
            multiple=True,
            metavar="NAME=URL",
            help="The store of another region, with which quota is lent and borrowed; may be repeated.",
        ),
        option(
            "borrow-max",
            default="0.2",
            metavar="PART",
            help="Part of its own share that a region lends at most, 0 to 1.",
        ),
        option(
            "region-clients",
            type=click.Choice([SHARE, EACH]),
            default=SHARE,
            help="What a client has in a region: the region's share of its limit, or all of it in each region.",
        ),
    )


def regions_of(values: Mapping[str, Any]) -> RegionSettings | None:
    """What the flags say, or None where there are no regions. Raises ConfigurationError that names the flag."""
    region, table = values["region"], values["regions"]
    if not region and not table:
        if values["region_store"] or values["regions_before"]:
            raise ConfigurationError("--region-store and --regions-before are for servers with --region and --regions")
        return None
    if not region or not table:
        raise ConfigurationError(_TOGETHER)
    plan = plan_of(values)
    assert plan is not None
    return RegionSettings(region, plan, _stores(values["region_store"]))


def plan_of(values: Mapping[str, Any]) -> Plan | None:
    """The table of regions; None without ``--regions``. Raises ConfigurationError that names the flag."""
    table, before = values["regions"], values["regions_before"]
    if not table:
        if values["region"]:
            raise ConfigurationError(_TOGETHER)
        return None
    weights = _weights("--regions", table)
    part = _part(values["borrow_max"])
    weights_before = _weights("--regions-before", before) if before else None
    try:
        return Plan(weights, part, weights_before, values["regions_version"], values["region_clients"])
    except ConfigurationError as error:
        # A plan names its field; who starts a server knows the flag.
        field, colon, reason = str(error).partition(":")
        raise ConfigurationError(f"--{field.replace('_', '-')}{colon}{reason}") from None


def _weights(flag: str, text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in text.split(","):
        name, equals, weight = item.strip().partition("=")
        if not equals or not (weight.isascii() and weight.isdecimal() and len(weight) <= 9):
            raise ConfigurationError(f"{flag}: want NAME=WEIGHT with a whole number, got {item.strip()[:60]!r}")
        if name in found:
            raise ConfigurationError(f"{flag}: {name!r:.60} is given twice")
        found[name] = int(weight)
    return found


def _part(text: str) -> Fraction:
    whole, dot, places = str(text).partition(".")
    digits = whole + places
    if not (digits.isascii() and digits.isdecimal() and len(places) <= _PLACES_MAX and len(digits) <= 2 * _PLACES_MAX):
        raise ConfigurationError(f"--borrow-max: want a number from 0 to 1, as 0.2, got {str(text)[:20]!r}")
    return Fraction(int(digits), 10 ** len(places) if dot else 1)


def _stores(items: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in items:
        name, equals, url = item.partition("=")
        if not equals or not url:
            raise ConfigurationError(
                f"--region-store: want NAME=URL, got a value without one of them (region {name[:40]!r})"
            )
        if name in found:
            raise ConfigurationError(f"--region-store: {name!r:.60} is given twice")
        found[name] = url
    return found
