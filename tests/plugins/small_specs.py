"""Small specs of every algorithm, drawn by chance."""

from __future__ import annotations

from hypothesis import strategies as st

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket

__all__ = ["SPECS"]

_LIMITS = st.integers(1, 9)
_WINDOWS = st.integers(50, 400_000)

SPECS: st.SearchStrategy[Spec] = st.one_of(
    st.builds(TokenBucket, _LIMITS, st.integers(1, 7), _WINDOWS),
    st.builds(LeakyBucket, _LIMITS, st.integers(1, 7), _WINDOWS, st.integers(0, 400_000), st.booleans()),
    st.builds(FixedWindow, _LIMITS, _WINDOWS),
    st.builds(SlidingLog, _LIMITS, _WINDOWS),
    st.builds(SlidingWindow, _LIMITS, _WINDOWS),
    st.builds(SlidingWindow, _LIMITS, _WINDOWS, st.integers(2, 7)),
)
