"""The ranges of what a process may answer itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.stores.near.settings import NearSettings

MS = 1_000


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("horizon_us", lambda: NearSettings(horizon_us=1)),
        ("horizon_us", lambda: NearSettings(terms=LeaseTerms(ttl_us=300 * MS))),
        ("exact_below", lambda: NearSettings(exact_below=0)),
        ("leases_max", lambda: NearSettings(leases_max=-1)),
        ("denials_max", lambda: NearSettings(denials_max=1.5)),  # type: ignore[arg-type]
        ("trust_us", lambda: NearSettings(trust_us=1)),
        ("cold_per_s", lambda: NearSettings(cold_per_s=50)),
    ],
)
def test_a_number_out_of_range_is_named(field: str, make: Callable[[], Any]) -> None:
    """The error names the setting."""
    with pytest.raises(ValueError, match=field):
        make()
