"""Replay: what rules would have done to the requests of an access log, decided by the log's own clock."""

from __future__ import annotations

from sluicegate.replaying.recording import Recording
from sluicegate.replaying.report import Comparison, Report
from sluicegate.replaying.run import FORMATS, Replay, replay

__all__ = ["FORMATS", "Comparison", "Recording", "Replay", "Report", "replay"]
