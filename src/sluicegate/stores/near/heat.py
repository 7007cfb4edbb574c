"""Which counters are hot in this process: called so often that asking the store every time no longer pays.

Calls are counted in windows of about a second by Space-Saving, so in bounded memory, and only what is certain counts: a counter
that is called hot was called at least that often. Of N calls in a window one whose rate is above the threshold by more than
N / ``HEAT_COUNTERS_MAX`` is certainly found.

Hysteresis. A counter is hot as soon as it has been called so often within a window as ``hot_per_s`` for all of it makes. It is cold when no window has reached ``cold_per_s``
for ``cold_us``, so it changes at most once in that time, and a load that stays above ``cold_per_s`` never makes it cold.
"""

from __future__ import annotations

from sluicegate.algorithms.space_saving import SpaceSaving
from sluicegate.bounds import HEAT_COUNTERS_MAX, HEAT_WINDOW_US, HOT_COUNTERS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.stores.near.settings import NearSettings

__all__ = ["Heat"]


class _Hot:
    """A hot counter: its calls in this window, exactly, and when a window last reached the lower threshold."""

    __slots__ = ("calls", "warm_us")

    def __init__(self, warm_us: int) -> None:
        self.calls = 0
        self.warm_us = warm_us


class Heat:
    """A plain object: no clock, no lock, no I/O. ``now_us`` is the steady time of this process.

    ``due_us``: when ``step`` has something to do; a caller that counts calls looks at it. Hot counters, of which there are at most
    ``HOT_COUNTERS_MAX``, are counted exactly.
    """

    __slots__ = ("_begun_us", "_enough", "_hot", "_settings", "_sketch", "due_us")

    def __init__(self, settings: NearSettings, now_us: int = 0, size: int = HEAT_COUNTERS_MAX) -> None:
        self._settings = settings
        self._sketch: SpaceSaving[str] = SpaceSaving(size)
        self._hot: dict[str, _Hot] = {}
        # Calls that are enough for a whole window, however soon they came.
        self._enough = -(-settings.hot_per_s * HEAT_WINDOW_US // US_PER_S)
        self._begun_us = now_us
        self.due_us = now_us + HEAT_WINDOW_US

    def __contains__(self, key: str) -> bool:
        """Whether a counter is hot."""
        return key in self._hot

    def saw(self, key: str, now_us: int) -> bool:
        """A counter was asked for once: whether that made it hot. A tenth of a microsecond or two.

        It says so once in a window; a window that should have ended is ``step``'s to judge, by its whole length.
        """
        hot = self._hot.get(key)
        if hot is not None:
            hot.calls += 1
            return False
        sketch, enough = self._sketch, self._enough
        if sketch.add(key) < enough or now_us >= self.due_us or sketch.guaranteed(key) != enough:
            return False
        if len(self._hot) >= HOT_COUNTERS_MAX:
            return False
        self._hot[key] = _Hot(now_us)
        return True

    def saw_many(self, key: str, calls: int) -> None:
        """A hot counter was asked for so often where nobody told each call. Of a counter that is not hot it says nothing."""
        hot = self._hot.get(key)
        if hot is not None:
            hot.calls += calls

    def forget(self, key: str) -> None:
        """A counter is not hot any more, whatever its load: it cannot be treated as one."""
        self._hot.pop(key, None)

    def step(self, now_us: int) -> tuple[list[str], list[str]]:
        """(counters that are hot from now on, the hottest first; counters that are cold again). Ends the window where it has lasted long enough.
        Those that ``saw`` found are not told again.

        A window that nobody ended in time is longer, and its rates are those of all of it.
        """
        if now_us < self.due_us:
            return [], []
        passed_us = now_us - self._begun_us
        self._begun_us, self.due_us = now_us, now_us + HEAT_WINDOW_US
        cold = self._cooled(now_us, passed_us)
        risen = self._risen(now_us, passed_us)
        self._sketch.clear()
        return risen, cold

    def _cooled(self, now_us: int, passed_us: int) -> list[str]:
        settings, cold = self._settings, []
        for key, hot in self._hot.items():
            if hot.calls * US_PER_S >= settings.cold_per_s * passed_us:
                hot.warm_us = now_us
            elif now_us - hot.warm_us >= settings.cold_us:
                cold.append(key)
            hot.calls = 0
        for key in cold:
            del self._hot[key]
        return cold

    def _risen(self, now_us: int, passed_us: int) -> list[str]:
        least = -(-self._settings.hot_per_s * passed_us // US_PER_S)
        found = [each for each in self._sketch.guaranteed_above(least) if each[0] not in self._hot]
        found.sort(key=lambda each: (-each[1], each[0]))
        risen = [key for key, _ in found[: HOT_COUNTERS_MAX - len(self._hot)]]
        self._hot |= {key: _Hot(now_us) for key in risen}
        return risen
