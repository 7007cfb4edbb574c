"""OpenMetrics 1.0, the format of ``/metrics`` that has exemplars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

__all__ = ["OPEN_CONTENT_TYPE", "open_metrics"]

OPEN_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

open_metrics: Callable[[CollectorRegistry], bytes] = generate_latest
"""All metrics of a registry, the closing line included."""
