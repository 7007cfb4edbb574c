from __future__ import annotations

from collections.abc import Callable

import pytest

from sluicegate.rules.load import check_rules

LinesOf = Callable[[str], list[str]]


@pytest.fixture
def lines_of() -> LinesOf:
    """Give the problems of a file as the lines an operator reads, the file's name cut off."""

    def lines(text: str) -> list[str]:
        _, problems = check_rules(text, "f")
        return [str(problem).removeprefix("f:") for problem in problems]

    return lines
