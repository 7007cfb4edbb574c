"""What the HTTP interface of the rules service is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluicegate.bounds import FAILED_LOGINS_PER_MINUTE, WRITES_PER_MINUTE
from sluicegate.errors import ConfigurationError

__all__ = ["ApiSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """``failed_logins_per_minute``: wrong tokens of one address that get 401, before 429. ``writes_per_minute``: changes by one token.

    ``node_token``: a bearer token of the role node that is in no database; for nodes that were started together with the service. None:
    there is none. Raises ConfigurationError for a limit below 1.
    """

    failed_logins_per_minute: int = FAILED_LOGINS_PER_MINUTE
    writes_per_minute: int = WRITES_PER_MINUTE
    node_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("failed_logins_per_minute", "writes_per_minute"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
