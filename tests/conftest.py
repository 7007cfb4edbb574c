"""Rules every test lives under: reproducible examples, and no skip that goes unseen.

``SLUICEGATE_STRICT=1`` turns the skip of a test for want of a program on this machine into a failure. Without it the
closing lines say how many tests were skipped, and for which program.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

STRICT = os.environ.get("SLUICEGATE_STRICT", "") not in ("", "0")
MISSING_PROGRAMS: Counter[str] = Counter()

# The same examples on every run, and no deadline: a slow machine is not a fault of the code. To search
# for new examples: HYPOTHESIS_PROFILE=explore.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", parent=settings.get_profile("ci"), derandomize=False, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def require_program() -> Callable[[str], str]:
    """Give the path of a program, or skip the test with a reason (fail it under ``SLUICEGATE_STRICT=1``)."""

    def require(name: str) -> str:
        found = shutil.which(name)
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
