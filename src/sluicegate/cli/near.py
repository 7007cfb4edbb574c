"""The flags of what a server answers without asking its store: leases and the deny cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.cli.options import DurationType, flag, option
from sluicegate.clock import US_PER_S
from sluicegate.errors import ConfigurationError
from sluicegate.rules.report_near import ReportTerms
from sluicegate.stores.near.settings import NearSettings

__all__ = ["near_of", "near_options", "report_terms"]

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")

_DURATION: Final = DurationType()
_DEFAULTS: Final = NearSettings()

_TERMS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "lease-ttl",
        "ttl_us",
        "How long a lease lasts; the same on all machines. What a process held that was killed is lost for so long.",
    ),
    (
        "lease-drift-ppm",
        "drift_ppm",
        "By how many millionths any clock may run fast or slow; the same on all machines.",
    ),
)
_NUMBERS: Final[tuple[tuple[str, str, str], ...]] = (
    ("lease-horizon", "horizon_us", "For how long ahead tokens are taken, at most half of --lease-ttl."),
    ("lease-exact-below", "exact_below", "Counters of fewer tokens per process are decided by the store."),
    ("leases-max", "leases_max", "Counters that one process leases at once."),
    ("deny-cache-max", "denials_max", "Refusals that one process remembers at once."),
    ("deny-cache-trust", "trust_us", "For how long a refusal is repeated without asking the store again."),
    (
        "deny-cache-stretch",
        "stretch_max_us",
        "For how long at most where several processes refuse for one counter; 0: no longer than the store said.",
    ),
    (
        "hot-per-s",
        "hot_per_s",
        "Store calls a second from which on a counter is hot, and leased or split if it may be.",
    ),
    ("cold-per-s", "cold_per_s", "Checks a second below which a hot counter may be cold again."),
    ("cold-after", "cold_us", "For how long it must have been so."),
)
"""(flag, field, what --help says). A field in microseconds is a duration on the command line."""


def near_options() -> tuple[Callable[[Function], Function], ...]:
    """All of them."""
    return (
        option(
            "leases/--no-leases",
            default=True,
            help="Decide shared and hot counters in the process, from tokens taken of the store in advance.",
        ),
        option(
            "deny-cache/--no-deny-cache",
            default=True,
            help="Refuse in the process what the store has just refused, for as long as it said.",
        ),
        flag(
            "leases-confirmed",
            help="Use a lease only when a replica has it, so that no failover grants it again; the same on all machines.",
        ),
        *(_numbered(name, getattr(_DEFAULTS.terms, field), field, text) for name, field, text in _TERMS),
        *(_numbered(name, getattr(_DEFAULTS, field), field, text) for name, field, text in _NUMBERS),
    )


def near_of(values: Mapping[str, Any]) -> NearSettings | None:
    """What the flags say; None where every check is to ask the store. Raises ConfigurationError, naming the flag."""
    if not values["leases"] and not values["deny_cache"]:
        return None
    terms = _made(LeaseTerms, _TERMS, values, {"confirmed": values["leases_confirmed"]})
    switched: dict[str, Any] = {"terms": terms}
    if not values["leases"]:
        switched["leases_max"] = 0
    if not values["deny_cache"]:
        switched["denials_max"] = 0
    return _made(NearSettings, _NUMBERS, values, switched)


def report_terms(values: Mapping[str, Any]) -> ReportTerms | None:
    """The same for a report of bounds, and of how long writes are lost."""
    near = near_of(values)
    if near is None:
        return None
    return ReportTerms(
        terms=near.terms,
        horizon_us=near.horizon_us,
        exact_below=near.exact_below,
        trust_us=near.trust_us,
        stretch_max_us=near.stretch_max_us,
        leases=near.leases_max > 0,
        denials=near.denials_max > 0,
        lost_us=round(values["lost_writes"] * US_PER_S),
    )


def _numbered(name: str, default: int, field: str, help: str) -> Callable[[Any], Any]:  # noqa: A002
    if not field.endswith("_us"):
        return option(name, type=int, default=default, help=help)
    return option(name, type=_DURATION, default=_duration(default), help=help)


def _duration(us: int) -> str:
    """A number of microseconds as it is written on a command line."""
    return f"{us / US_PER_S:g}s" if us >= US_PER_S or us == 0 else f"{us * 1_000 / US_PER_S:g}ms"


def _made(kind: Callable[..., T], table: tuple[tuple[str, str, str], ...], values: Mapping[str, Any], more: Any) -> T:
    fields = {}
    for name, field, _ in table:
        value = values[name.replace("-", "_")]
        fields[field] = round(value * US_PER_S) if field.endswith("_us") else value
    try:
        return kind(**{**fields, **more})
    except ValueError as error:
        raise ConfigurationError(_in_flags(str(error))) from error


def _in_flags(text: str) -> str:
    """What a number was refused for, in the words of who starts a server: flags in the place of fields, durations in that of microseconds."""
    field, _, reason = text.partition(": ")
    if not any(field == of for _, of, _ in (*_TERMS, *_NUMBERS)):
        return text
    reason = reason.replace("be an integer within", "be within")
    if field.endswith("_us"):
        reason = re.sub(r"\d+", lambda found: _duration(int(found[0])), reason)
    for name, of, _ in (*_TERMS, *_NUMBERS):
        reason = re.sub(rf"\b{of}\b", f"--{name}", reason)
        field = f"--{name}" if field == of else field
    return f"{field}: {reason}"
