"""What is wrong with a rules file, told to the person who has to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sluicegate.bounds import PROBLEMS_MAX
from sluicegate.errors import ConfigurationError

__all__ = ["Problem", "Problems", "RulesInvalid", "Severity"]

Severity: TypeAlias = Literal["error", "warning"]

_SHOWN_IN_MESSAGE: Final = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. An error keeps the file from being used; a warning says what the file may not mean to do.

    ``line`` counts from 1, 0 where no line is to blame. ``rule`` is the rule's name (or ``#3`` for the third, where it
    has none); ``field`` the path within the rule or file, such as ``match.path``. Both are None where they do not apply.
    ``pointer``: where it is in a document (a JSON pointer, "" for all of it); None where the rules were read from a file.
    """

    file: str
    line: int
    rule: str | None
    field: str | None
    message: str
    suggestion: str | None = None
    severity: Severity = "error"
    pointer: str | None = None

    def __str__(self) -> str:
        """``file:line: rule 'x': field: message (did you mean 'y'?)``; a warning says so after the line."""
        parts = [f"{self.file}:{self.line}" if self.line > 0 else self.file]
        if self.severity == "warning":
            parts.append("warning")
        if self.rule is not None:
            parts.append(f"rule {self.rule!r}")
        if self.field is not None:
            parts.append(self.field)
        hint = "" if self.suggestion is None else f" (did you mean {self.suggestion!r}?)"
        return f"{': '.join(parts)}: {self.message}{hint}"


class RulesInvalid(ConfigurationError):
    """A rules file cannot be used. ``problems`` holds every finding in order of lines, warnings included.

    The message is short enough for a log line: the first errors, then how many more there are.
    """

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        errors = [str(problem) for problem in self.problems if problem.severity == "error"]
        more = len(errors) - _SHOWN_IN_MESSAGE
        tail = [f"and {more} more"] if more > 0 else []
        super().__init__("; ".join([*errors[:_SHOWN_IN_MESSAGE], *tail]))


class Problems:
    """Collects the problems of one file; beyond PROBLEMS_MAX they are only counted."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: list[Problem] = []
        self._dropped = 0
        self.errors = 0

    def add(
        self,
        line: int,
        rule: str | None,
        field: str | None,
        message: str,
        suggestion: str | None = None,
        severity: Severity = "error",
    ) -> None:
        """Note one problem; an identical one (the same alias read twice) is noted once."""
        self.errors += severity == "error"
        problem = Problem(self.file, line, rule, field, message, suggestion, severity)
        if len(self._found) >= PROBLEMS_MAX:
            self._dropped += 1
        elif problem not in self._found:
            self._found.append(problem)

    def result(self) -> tuple[Problem, ...]:
        """All problems in order of lines; those of one line in the order they were found."""
        ordered = sorted(self._found, key=lambda problem: problem.line)
        if self._dropped:
            severity: Severity = "error" if self.errors else "warning"
            message = f"{self._dropped} more problems are not shown"
            ordered.append(Problem(self.file, 0, None, None, message, None, severity))
        return tuple(ordered)
