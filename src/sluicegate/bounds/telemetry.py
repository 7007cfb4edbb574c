"""Bounds of what a server tells of itself."""

from __future__ import annotations

from typing import Final

__all__ = ["DURATION_SAMPLE_ONE_IN", "OTEL_CLOSE_S"]

# Of so many checks the duration of one is measured. Counting down to it and measuring add about 0.1 us to each check, on the mean, and a thousand
# checks a second still give sixty durations.
DURATION_SAMPLE_ONE_IN: Final = 16

# How long the end of a process may wait for the last spans and counts to be sent by OTLP. A collector that is there takes them in
# milliseconds; one that is away must not keep a server from being replaced.
OTEL_CLOSE_S: Final = 3.0
