"""Of what is kept and asked about traffic."""

from __future__ import annotations

from typing import Final

__all__ = [
    "TRAFFIC_STEPS_MAX",
]

# Steps of one question about traffic. A graph is a thousand points wide; a week by minutes fits.
TRAFFIC_STEPS_MAX: Final = 11_000
