"""What a limiter remembers of its decisions for whoever tells of them, between two takes.

    Recorder     what a limiter calls, and the take
    Counting     every decision counted once, at a dictionary lookup each
    Looks        some decisions as they were: samples, and who asks most
    Following    all that some clients ask: demand, and watched counters

It does no I/O and never waits; everything is bounded (``bounds/recording.py``), and what does not fit is counted.
"""

from __future__ import annotations

from sluicegate.limiter.recording.recorder import Recorder
from sluicegate.limiter.recording.taken import Taken

__all__ = ["Recorder", "Taken"]
