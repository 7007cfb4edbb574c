"""The gateway door: a reverse proxy that decides before it forwards."""

from sluicegate.doors.gateway.gateway import Gateway
from sluicegate.doors.gateway.settings import Settings
from sluicegate.doors.gateway.stats import Stats

__all__ = ["Gateway", "Settings", "Stats"]
