"""Which regions share the quotas, and how: the same table in all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256

from sluicegate.algorithms import FixedWindow, SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import (
    REGION_NAME_CHARS_MAX,
    REGION_VERSION_MAX,
    REGION_WEIGHT_MAX,
    REGIONS_MAX,
)
from sluicegate.errors import ConfigurationError
from sluicegate.stores.base import Counter
from sluicegate.stores.regional.units import apportioned, first_of, part_of, tokens_of

__all__ = ["EACH", "SHARE", "Plan"]

_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{REGION_NAME_CHARS_MAX - 1}}}")

SHARE, EACH = "share", "each"
"""What a counter of one client has in a region: the region's share of the limit, or all of it in each region."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The table of regions. Raises ConfigurationError that names the field.

    ``weights``: the share of each region, as parts of their sum (0: none). ``borrow_max``: the part of its own share that a region may lend at most, 0 to 1.
    ``before``: weights that other nodes may still go by: each region then has only what is its own by both tables, and nothing is
    lent. ``version``: higher with each change. ``clients``: what counters of one client have, ``share`` or ``each``.
    """

    weights: Mapping[str, int]
    borrow_max: Fraction = Fraction(1, 5)
    before: Mapping[str, int] | None = None
    version: int = 1
    clients: str = SHARE
    names: tuple[str, ...] = field(init=False, repr=False)
    partners: tuple[str, ...] = field(init=False, repr=False)
    """The regions that have a share of their own; only these lend and borrow."""
    mark: str = field(init=False, repr=False)
    """Version and contents of the table, as records name it."""
    _own: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _kept: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_weights("regions", self.weights)
        if self.before is not None:
            _check_weights("regions_before", self.before)
        if not 0 <= self.borrow_max <= 1:
            raise ConfigurationError(f"borrow_max: want 0 to 1, got {self.borrow_max}")
        if not 1 <= self.version <= REGION_VERSION_MAX:
            raise ConfigurationError(f"regions_version: want 1 to {REGION_VERSION_MAX}, got {self.version}")
        if self.clients not in (SHARE, EACH):
            raise ConfigurationError(f"region_clients: want {SHARE} or {EACH}, got {self.clients!r}")
        names = tuple(sorted({*self.weights, *(self.before or {})}))
        own = dict(zip(names, apportioned(self.weights.get(name, 0) for name in names), strict=True))
        kept = {name: first_of(mask, -(-mask.bit_count() * (1 - self.borrow_max) // 1)) for name, mask in own.items()}
        if self.before is not None:
            old = dict(zip(names, apportioned(self.before.get(name, 0) for name in names), strict=True))
            own = kept = {name: mask & old[name] for name, mask in own.items()}
        text = repr((sorted(self.weights.items()), self.borrow_max, sorted((self.before or {}).items())))
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "partners", tuple([name for name in names if own[name]]))
        object.__setattr__(self, "mark", f"{self.version}:{sha256(text.encode()).hexdigest()[:8]}")
        object.__setattr__(self, "_own", own)
        object.__setattr__(self, "_kept", kept)

    def own(self, region: str) -> int:
        """The units of a region's own share."""
        return self._own[region]

    def kept(self, region: str) -> int:
        """Those of them that are never lent."""
        return self._kept[region]

    def moves(self, counter: Counter, *, shared: bool) -> bool:
        """Whether parts of this counter are lent: all clients share it, nothing speaks against it, and each region keeps a token.

        What a leaky bucket has promised cannot be taken back, a log is not cut, and refusals that are charged hide what is used.
        """
        spec = counter.spec
        if not shared or counter.denied_counts or not isinstance(spec, TokenBucket | FixedWindow | SlidingWindow):
            return False
        return self.before is None and self.borrow_max > 0 and all(self._fits(spec, name) for name in self.partners)

    def _fits(self, spec: Spec, region: str) -> bool:
        kept = self._kept[region]
        return tokens_of(kept, spec.capacity) > 0 and part_of(spec, kept).algorithm == spec.algorithm


def _check_weights(field_name: str, weights: Mapping[str, int]) -> None:
    """ConfigurationError where this is no table of weights."""
    if not 1 <= len(weights) <= REGIONS_MAX:
        raise ConfigurationError(f"{field_name}: want 1 to {REGIONS_MAX} regions, got {len(weights)}")
    for name, weight in weights.items():
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{field_name}: {name!r:.60} is no name of a region: lower-case letters, digits, '.', '_' and '-', at most {REGION_NAME_CHARS_MAX}"
            )
        if not 0 <= weight <= REGION_WEIGHT_MAX:
            raise ConfigurationError(f"{field_name}: {name}: want 0 to {REGION_WEIGHT_MAX}, got {weight}")
    if not any(weights.values()):
        raise ConfigurationError(f"{field_name}: the weights of all regions are 0")
