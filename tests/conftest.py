"""Rules every test lives under: reproducible examples, and no skip that goes unseen.

``SLUICEGATE_STRICT=1`` turns the skip of a test for want of a program on this machine into a failure. Without it the
closing lines say how many tests were skipped, and for which program.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from sluicegate.algorithms import TokenBucket

# Fixtures that several folders share.
pytest_plugins = [
    "real_servers",
    "real_postgres",
    "real_clickhouse",
    "real_clusters",
    "real_kafka",
    "real_sentinels",
    "fault_report",
    "store_faults",
    "doors_page",
    "outcomes",
    "measured",
    "monitoring",
    "bounded",
    "certificates",
]

STRICT = os.environ.get("SLUICEGATE_STRICT", "") not in ("", "0")
MISSING_PROGRAMS: Counter[str] = Counter()

# The same examples on every run, and no deadline: a slow machine is not a fault of the code. To search
# for new examples: HYPOTHESIS_PROFILE=explore.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", parent=settings.get_profile("ci"), derandomize=False, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def require_program() -> Callable[[str], str]:
    """Give the path of a program, or skip the test with a reason (fail it under ``SLUICEGATE_STRICT=1``).

    Programs that came as wheels lie beside the interpreter, and are the ones that the locks name.
    """
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])

    def require(name: str) -> str:
        found = shutil.which(name, path=folders)
        if found is not None:
            return found
        reason = f"needs the program {name!r}, which is not on this machine"
        if STRICT:
            pytest.fail(f"{reason} (SLUICEGATE_STRICT=1)", pytrace=False)
        MISSING_PROGRAMS[name] += 1
        pytest.skip(reason)

    return require


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were skipped for want of a program, and which."""
    for name, count in sorted(MISSING_PROGRAMS.items()):
        terminalreporter.write_line(f"skipped {count} test(s): the program {name!r} is not on this machine")


@pytest.fixture
def often_switched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other threads run between the reading of a token bucket and its writing, where a race would do its harm."""
    admit = TokenBucket.admit

    def yielding(self: TokenBucket, state: int | None, now_us: int, cost: int) -> int | None:
        os.sched_yield()
        return admit(self, state, now_us, cost)

    monkeypatch.setattr(TokenBucket, "admit", yielding)
    monkeypatch.setattr(TokenBucket, "unit_admit", lambda self: lambda state, now_us: self.admit(state, now_us, 1))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(interval)
