"""The home that needs nothing else: one SQLite file, written by all processes of a machine."""

from __future__ import annotations

from sluicegate.analytics.embedded.home import EmbeddedHome
from sluicegate.analytics.embedded.retention import Retention
from sluicegate.analytics.embedded.sink import EmbeddedSink

__all__ = ["EmbeddedHome", "EmbeddedSink", "Retention"]
